#!/usr/bin/env bash
# Test in several processes:  tools/dist_test.sh CONFIG CHECKPOINT GPUS [options of test.py]
# The environment variables are those of dist_train.sh.
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
exec "${PYTHON:-python}" "$tools/dist.py" test "$@"
