#!/usr/bin/env bash
# Create the environment of this checkout, once: a virtual environment with the pinned packages and mmrm itself.
#   tools/setup_env.sh [openmmlab|onedl]
# MMRM_VENV chooses the folder (default: .venv, or .venv-onedl, in the checkout), PYTHON the interpreter.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
stack=${1:-openmmlab}
case $stack in
    openmmlab) default=$root/.venv ;;
    onedl) default=$root/.venv-onedl ;;
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
if ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))'; then
    echo "error: $("$python" --version 2>&1); the pinned packages need Python 3.10 to 3.12. Set PYTHON=..." >&2
    exit 2
fi
echo "mmrm: setting up $venv with the $stack packages (once, a few minutes, about 6 GB with torch's CUDA libraries)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
# Every package at the version the tests ran with; the lock was made with Python 3.11.
lock=()
if "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    lock=(-c "$root/requirements/lock-$stack.txt")
fi
# OneDL's source packages name their licence in a way that setuptools reads from 77 on.
pip install --progress-bar off "setuptools>=77,<82" wheel
pip install --progress-bar off ${lock[@]+"${lock[@]}"} --no-build-isolation -e "$root[$stack,tests,analysis]"
# opencv-python needs the system's libGL; its headless twin has the same module without windows.
if ! "$venv/bin/python" -c 'import cv2' 2>/dev/null; then
    version=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("opencv-python"))')
    pip install --progress-bar off --force-reinstall --no-deps "opencv-python-headless==$version"
fi
printf '%s\n' "$wanted" > "$stamp"
