#!/usr/bin/env bash
# Train in several processes:  tools/dist_train.sh CONFIG GPUS [options of train.py]
#   GPUS                 processes on this node, one a GPU
#   NNODES, NODE_RANK    how many nodes, and which of them this one is (default: 1, 0)
#   MASTER_ADDR, PORT    where node 0 listens if there are several (default: 127.0.0.1, 29500)
#   MAX_RESTARTS         how often the processes are started again after a failure, to go on (default: 0)
#   HANG_MINUTES         after how long a process that does not get on is ended; 0: never (default: 10)
#   MMRM_RENDEZVOUS=tcp  one node: meet at PORT instead of through a file
#   MMRM_DEVICE=cpu      processes on the CPU, which talk through gloo (the same as --device cpu)
#   PYTHON               interpreter (default: python)
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
exec "${PYTHON:-python}" "$tools/dist.py" train "$@"
