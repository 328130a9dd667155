#!/usr/bin/env bash
# Create the environment of this checkout, once: a virtual environment with the pinned packages and mmrm itself.
#   tools/setup_env.sh [openmmlab|onedl]
# MMRM_VENV chooses the folder (default: .venv, or .venv-onedl, in the checkout), PYTHON the interpreter.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
stack=${1:-openmmlab}
case $stack in
    openmmlab) default=$root/.venv newest=14 ;;
    onedl) default=$root/.venv-onedl newest=13 ;;
    *) echo "error: unknown stack '$stack': openmmlab or onedl" >&2; exit 2 ;;
esac
venv=${MMRM_VENV:-$default}
# The stamp is written last and names what it was made from: a half-made or outdated environment is completed.
stamp=$venv/mmrm-ready
wanted=$(cd "$root" && cat setup.py requirements/*.txt | cksum)" $stack $root"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi
# Also in a half-made environment, or one of the user's: the two stacks share import names and cannot live together.
if [ -x "$venv/bin/python" ]; then
    case $stack in openmmlab) others='onedl-mmengine onedl-mmcv' ;; onedl) others='mmengine mmcv mmcv-lite' ;; esac
    for other in $others; do
        if "$venv/bin/python" -c "from importlib.metadata import version; version('$other')" 2>/dev/null; then
            echo "error: $venv holds $other, of the other stack; the two cannot live together. Set MMRM_VENV." >&2
            exit 2
        fi
    done
fi
python=${PYTHON:-python3}
if ! "$python" -c "import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, $newest))"; then
    echo "error: $("$python" --version 2>&1); the $stack packages need Python 3.10 to 3.$newest. Set PYTHON=..." >&2
    exit 2
fi
echo "mmrm: setting up $venv with the $stack packages (once, a few minutes, about 6 GB with torch's CUDA libraries)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
# Every package at the version the tests ran with, and no file but those whose hash is in the lock (tools/lock.sh).
hashed=(install --progress-bar off --require-hashes --no-build-isolation)
failed() {
    echo "error: the packages of requirements/lock-$1.txt could not be installed; pip says why, above" >&2
    exit 1
}
locked() {
    local name=$1
    shift
    pip "${hashed[@]}" "$@" -r "$root/requirements/lock-$name.txt" || failed "$name"
}
# pip unpacks on one core, and half of it are torch's CUDA libraries: these in a process of their own. A lock names all
# packages, so neither has to look for more.
locked_side_by_side() {
    local name=$1 parts=$venv/mmrm-parts cuda
    mkdir -p "$parts"
    rm -f "$parts"/*
    awk -v folder="$parts" '
        /^[^ #]/ { part = /^(cuda|nvidia)-[a-z0-9-]+==/ ? "cuda" : "others" }
        part { print > (folder "/" part ".txt") }' "$root/requirements/lock-$name.txt"
    touch "$parts/cuda.txt" "$parts/others.txt"
    # Not through a function: $! must be pip itself, to end it when the other part fails.
    "$venv/bin/python" -m pip --disable-pip-version-check "${hashed[@]}" --no-deps -r "$parts/cuda.txt" \
        > "$parts/cuda.log" 2>&1 &
    cuda=$!
    trap 'kill "$cuda" 2> /dev/null || true; wait "$cuda" 2> /dev/null || true' EXIT
    pip "${hashed[@]}" --no-deps -r "$parts/others.txt" || failed "$name"
    echo "mmrm: waiting for torch's CUDA libraries"
    if ! wait "$cuda"; then
        cat "$parts/cuda.log" >&2
        failed "$name"
    fi
    trap - EXIT
    rm -r "$parts"
}
locked build
case $stack in
    openmmlab) locked_side_by_side "$stack" ;;
    onedl) locked "$stack" --no-deps ;;  # has packages that are built
esac
pip install --progress-bar off --no-build-isolation --no-deps -e "$root"
# opencv-python needs the system's libGL; its headless twin has the same module without windows.
if ! "$venv/bin/python" -c 'import cv2' 2>/dev/null; then
    locked "$stack-headless" --force-reinstall --no-deps
fi
printf '%s\n' "$wanted" > "$stamp"
