#!/usr/bin/env bash
# Set up the environment if needed, lint, and run the tests; further arguments go to pytest.
#   tests/run.sh                  the default suite
#   tests/run.sh -m slow          what takes minutes each
#   STACK=onedl tests/run.sh      the same suite on the OneDL packages
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
stack=${STACK:-openmmlab}
tools/setup_env.sh "$stack"
case $stack in onedl) venv=${MMRM_VENV:-$root/.venv-onedl} ;; *) venv=${MMRM_VENV:-$root/.venv} ;; esac
# For the tests only: Lightning, Accelerate, transformers and torchdata, and what builds the site.
"$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes \
    -r requirements/lock-loops.txt -r requirements/lock-docs.txt
# One thread a process: the tests are many small networks, and two processes share two cores.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
# Each takes half of the files in a row, then what the other has left: what a file's tests share is made once.
exec "$venv/bin/python" -m pytest -n "${WORKERS:-2}" --dist worksteal "$@"
