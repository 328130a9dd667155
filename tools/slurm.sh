#!/usr/bin/env bash
# What slurm_train.sh and slurm_test.sh run:  slurm.sh PARTITION JOB_NAME {train,test} CONFIG ...
#   GPUS            processes in all, one a GPU (default: 8)
#   GPUS_PER_NODE   of them on each node (default: GPUS, at most 8)
#   CPUS_PER_TASK   cores a process (default: 5)
#   SRUN_ARGS       more arguments for srun
#   PORT            where the first node listens (default: 29500)
#   MMRM_DEVICE=cpu processes on the CPU; no GPU is asked for
#   PYTHON          interpreter (default: python)
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
fail() {
    echo "error: $*" >&2
    exit 2
}

partition=$1 job_name=$2 task=$3 config=$4
shift 3
GPUS=${GPUS:-8}
CPUS_PER_TASK=${CPUS_PER_TASK:-5}
for name in GPUS CPUS_PER_TASK GPUS_PER_NODE; do
    value=${!name-1}
    [[ $value =~ ^[1-9][0-9]*$ ]] || fail "$name=$value is not a whole number of 1 or more"
done
GPUS_PER_NODE=${GPUS_PER_NODE:-$((GPUS < 8 ? GPUS : 8))}
[ -f "$config" ] || [ -f "$tools/../$config" ] || [ -f "$tools/../configs/$config" ] || fail "config $config does not exist"
command -v srun >/dev/null || fail "srun was not found: this machine has no Slurm. tools/dist_$task.sh needs none."

gres=(--gres="gpu:$GPUS_PER_NODE")
[ "${MMRM_DEVICE:-}" != cpu ] || gres=()
[ -z "${PORT:-}" ] || export MASTER_PORT=$PORT
# SRUN_ARGS is several words.
# shellcheck disable=SC2086
exec srun -p "$partition" --job-name="$job_name" "${gres[@]}" --ntasks="$GPUS" --ntasks-per-node="$GPUS_PER_NODE" \
    --cpus-per-task="$CPUS_PER_TASK" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$tools/$task.py" "$@" --launcher slurm
