#!/usr/bin/env bash
# Installs PyTorch for the CPU and Hugging Face transformers into build/reference, a virtual environment, for tests/reference. Fetches
# 830 MB from PyPI. Does nothing if they are there.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=tests/reference/requirements.txt
target=build/reference

fail() {
  echo "install_reference.sh: $*" >&2
  exit 1
}

if cmp -s "$requirements" "$target/requirements.txt"; then
  echo "reference: already in $target"
  exit 0
fi
version=$(python3 -c 'import platform, sys; print("%d.%d" % sys.version_info[:2], platform.machine())')
[ "$version" = "3.11 x86_64" ] || fail "needs Python 3.11 on x86-64 for the packages of $requirements, not $version"

work=$target.new
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
log=$work/log
python3 -m venv "$work" >"$log" 2>&1 || fail "no virtual environment (on Debian: apt-get install python3-venv): $(tail -n 1 "$log")"
"$work/bin/python" -m pip install --quiet --no-cache-dir --no-deps --require-hashes --only-binary=:all: -r "$requirements" >"$log" 2>&1 ||
  fail "pip install failed: $(tail -n 1 "$log")"

# PyPI's torch is linked with all of CUDA, 2.7 GB in packages of their own. On a CPU it calls nothing of it but the two small libraries
# in the requirements; in place of the others stand libraries that have the names it looks for, and end the program if called.
packages=$work/lib/python3.11/site-packages
lib=$packages/torch/lib
wanted=$(for object in "$lib"/libtorch*.so; do nm -D --undefined-only "$object"; done | awk '{ sub(/@.*/, "", $NF); print $NF }' | sort -u)
stand_in() {
  local functions
  functions=$(grep -E "^$1[A-Z_]" <<<"$wanted" || true)
  sed '/./s/.*/void &(void) { __builtin_trap(); }/' <<<"$functions" >"$work/stand_in.c"
  echo "$2 { *; };" >"$work/stand_in.map"
  gcc -shared -w -o "$lib/$2" -Wl,-soname,"$2" -Wl,--version-script="$work/stand_in.map" "$work/stand_in.c"
}
stand_in cublas libcublas.so.12
stand_in cublasLt libcublasLt.so.12
stand_in cudnn libcudnn.so.9
stand_in cufft libcufft.so.11
stand_in curand libcurand.so.10
stand_in cusolverDn libcusolver.so.11
stand_in cusparse libcusparse.so.12
stand_in cusparseLt libcusparseLt.so.0
stand_in nccl libnccl.so.2
cp "$packages"/nvidia/cuda_runtime/lib/libcudart.so.12 "$packages"/nvidia/cuda_cupti/lib/libcupti.so.12 "$lib/"
"$work/bin/python" -c 'import torch; from transformers import AutoModelForCausalLM' >"$log" 2>&1 ||
  fail "the packages do not work: $(tail -n 1 "$log")"

rm -f "$work"/stand_in.*
cp "$requirements" "$work/"
rm -rf "$target"
mv -T "$work" "$target"
echo "reference: in $target"
