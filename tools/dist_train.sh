#!/usr/bin/env bash
# Train in several processes:  tools/dist_train.sh CONFIG GPUS [options of train.py]
#   GPUS                 processes on this node, one per GPU
#   NNODES, NODE_RANK    how many nodes, and which of them this one is (default: 1, 0)
#   MASTER_ADDR, PORT    where node 0 listens if there are several (port: 29500)
#   MAX_RESTARTS         how often the processes are restarted after a failure, and resume (default: 0)
#   MMRM_DEVICE=cpu      processes on the CPU, which talk through gloo (the same as --device cpu)
#   PYTHON               interpreter (default: python)
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
if [ $# -lt 2 ]; then
    echo "usage: dist_train.sh CONFIG GPUS [options of train.py]" >&2
    exit 2
fi
exec "${PYTHON:-python}" "$tools/train.py" "$1" --gpus "$2" "${@:3}"
