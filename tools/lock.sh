#!/usr/bin/env bash
# Remake the locks, requirements/lock-*.txt, after a change of the other files in requirements. Needs uv (pip install uv).
#   tools/lock.sh                      versions that still fit are kept
#   tools/lock.sh --upgrade            all of them again; further arguments go to `uv pip compile`
# One lock serves every Python from 3.10 on, on Linux, macOS and Windows: lines that differ have markers. Every file that the
# package index offers for a version has its hash.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../requirements"
uv=${UV:-uv}
if ! command -v "$uv" > /dev/null; then
    echo "error: uv is not installed: pip install uv" >&2
    exit 2
fi
more=("$@")
compile() {  # output, inputs
    local out=$1
    shift
    "$uv" pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate \
        --custom-compile-command tools/lock.sh ${more[@]+"${more[@]}"} -o "$out" "$@" > /dev/null
    echo "requirements/$out: $(grep -c '^[a-z]' "$out") packages, $(grep -c 'hash=' "$out") hashes"
}
compile lock-build.txt build.txt
for stack in openmmlab onedl; do
    compile "lock-$stack.txt" runtime.txt torch.txt "$stack.txt" commands.txt tests.txt analysis.txt build.txt -c lock-build.txt
    # The twin of opencv-python for machines without libGL, of the same version.
    sed -n 's/^opencv-python==/opencv-python-headless==/; s/ \\$//; /^opencv-python-headless==/p' "lock-$stack.txt" |
        sort -u | compile "lock-$stack-headless.txt" --no-deps -
done
# What tests/run.sh installs beside the packages of the stack: those are left out.
beside=(-c lock-openmmlab.txt)
for extra in loops docs; do
    compile "lock-$extra.txt" "$extra.txt" "${beside[@]}"
    awk 'NR == FNR { if (/^[a-z0-9]/) { split($1, name, "=="); known[name[1]] } next }
        /^[^ ]/ { split($1, name, "=="); out = name[1] in known } !out' lock-openmmlab.txt "lock-$extra.txt" > lock.tmp
    mv lock.tmp "lock-$extra.txt"
    beside+=(-c "lock-$extra.txt")
done
