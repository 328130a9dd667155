#!/usr/bin/env bash
# Test under Slurm:  tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [options of test.py]
# The environment variables are explained in slurm.sh.
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
if [ $# -lt 4 ]; then
    echo "usage: slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [options of test.py]" >&2
    exit 2
fi
partition=$1 job_name=$2
shift 2
exec bash "$tools/slurm.sh" "$partition" "$job_name" test "$@"
