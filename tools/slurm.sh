#!/usr/bin/env bash
# What slurm_train.sh and slurm_test.sh run:  slurm.sh PARTITION JOB_NAME {train,test} CONFIG ...
#   GPUS            processes in all, one per GPU (default: 8)
#   GPUS_PER_NODE   of them on each node (default: GPUS, at most 8)
#   CPUS_PER_TASK   cores per process (default: 5)
#   SRUN_ARGS       more arguments for srun
#   PORT            where the first node listens (default: 29500)
#   MMRM_DEVICE=cpu processes on the CPU; no GPU is asked for
#   PYTHON          interpreter (default: python)
# For training:
#   BATCH=1         submit it with sbatch, which returns at once; the log is JOB_NAME-<job id>.log
#   WARN_SECONDS    how long before the time limit Slurm sends SIGUSR1 (default: 120). The run then saves, ends, is
#                   requeued and resumes. 0: no warning
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
# A name without a folder, such as rm_resnet50_8xb64_in1k or mmpretrain::..., is left to train.py.
[[ $config == *::* || $config != */* && $config != *.py ]] || [ -f "$config" ] || [ -f "$tools/../$config" ] || [ -f "$tools/../configs/$config" ] || fail "config $config does not exist"
command -v srun >/dev/null || fail "srun was not found: this machine has no Slurm. tools/dist_$task.sh needs none."

WARN_SECONDS=${WARN_SECONDS:-120}
[[ $WARN_SECONDS =~ ^[0-9]+$ ]] || fail "WARN_SECONDS=$WARN_SECONDS is not a whole number of 0 or more"

resources=(-p "$partition" --job-name="$job_name")
[ "${MMRM_DEVICE:-}" = cpu ] || resources+=(--gres="gpu:$GPUS_PER_NODE")
resources+=(--ntasks="$GPUS" --ntasks-per-node="$GPUS_PER_NODE" --cpus-per-task="$CPUS_PER_TASK")
[ -z "${PORT:-}" ] || export MASTER_PORT=$PORT
if [ "$task" = test ]; then
    # SRUN_ARGS is several words.
    # shellcheck disable=SC2086
    exec srun "${resources[@]}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} "${PYTHON:-python}" -u "$tools/test.py" "$@" --launcher slurm
fi

warning=()
[ "$WARN_SECONDS" = 0 ] || warning=(--signal="USR1@$WARN_SECONDS")
if [ "${BATCH:-}" = 1 ] && [ -z "${SLURM_JOB_ID:-}" ]; then
    command -v sbatch >/dev/null || fail "sbatch was not found; without BATCH=1 srun is used."
    export GPUS GPUS_PER_NODE CPUS_PER_TASK WARN_SECONDS BATCH
    # The job is this script again (Slurm would run a copy of a file); sbatch gets srun's arguments.
    # shellcheck disable=SC2086
    exec sbatch "${resources[@]}" "${warning[@]}" --requeue --open-mode=append --output="$job_name-%j.log" ${SRUN_ARGS:-} \
        --wrap "exec bash $(printf '%q ' "$tools/slurm.sh" "$partition" "$job_name" "$task" "$@")"
fi

# A user who ends the job, or this script, does not want a requeue.
ended=
trap 'ended=1' TERM INT
stopped=75
if [ -n "${SLURM_JOB_ID:-}" ]; then # in a job: its allocation, and its warning
    allocation=(--ntasks="$GPUS" --ntasks-per-node="$GPUS_PER_NODE" --cpus-per-task="$CPUS_PER_TASK")
    [ "${BATCH:-}" = 1 ] && SRUN_ARGS=
else
    allocation=("${resources[@]}")
    export MMRM_LAUNCH="$(hostname)-$$-$(date +%s)" MMRM_RESTARTS=0
fi
while :; do
    # shellcheck disable=SC2086
    srun "${allocation[@]}" --kill-on-bad-exit=1 "${warning[@]}" ${SRUN_ARGS:-} \
        "${PYTHON:-python}" -u "$tools/train.py" "$@" --launcher slurm
    code=$?
    [ $code = $stopped ] && [ -z "$ended" ] || exit $code
    if [ -n "${SLURM_JOB_ID:-}" ]; then
        echo "requeued: job $SLURM_JOB_ID resumes from its last checkpoint" >&2
        scontrol requeue "$SLURM_JOB_ID" || exit $stopped
        if [ -z "$ended" ]; then # until Slurm ends this script
            sleep 60 >/dev/null 2>&1 &
            wait $!
        fi
        exit $stopped
    fi
    MMRM_RESTARTS=$((MMRM_RESTARTS + 1))
    echo "requeued, resumes from the last checkpoint" >&2
done
