#!/usr/bin/env bash
# Test in several processes:  tools/dist_test.sh CONFIG CHECKPOINT GPUS [options of test.py]
# The environment variables are those of dist_train.sh.
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
if [ $# -lt 3 ]; then
    echo "usage: dist_test.sh CONFIG CHECKPOINT GPUS [options of test.py]" >&2
    exit 2
fi
exec "${PYTHON:-python}" "$tools/test.py" "$1" "$2" --gpus "$3" "${@:4}"
