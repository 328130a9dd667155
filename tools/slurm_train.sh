#!/usr/bin/env bash
# Train under Slurm:  tools/slurm_train.sh PARTITION JOB_NAME CONFIG [WORK_DIR] [options of train.py]
# The environment variables are explained in slurm.sh.
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
if [ $# -lt 3 ]; then
    echo "usage: slurm_train.sh PARTITION JOB_NAME CONFIG [WORK_DIR] [options of train.py]" >&2
    exit 2
fi
partition=$1 job_name=$2 config=$3
shift 3
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
    work_dir=$1
    shift
    set -- --work-dir "$work_dir" "$@"
fi
exec bash "$tools/slurm.sh" "$partition" "$job_name" train "$config" "$@"
