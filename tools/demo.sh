#!/usr/bin/env bash
# The whole demo on a fresh machine: the environment, then projects/demo/run.py, whose options it takes (--help).
# MMRM_VENV chooses the environment's folder (default: .venv in the checkout).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export MMRM_VENV=${MMRM_VENV:-$root/.venv}
"$root/tools/setup_env.sh"
exec "$MMRM_VENV/bin/python" "$root/projects/demo/run.py" "$@"
