#!/usr/bin/env bash
# Puts the headers of cudnn-frontend, which the CUDA backend's attention is built with, into a cache of the user, where
# CMake finds them. It has no Debian package; its headers come in a wheel on PyPI. Does nothing when they are there.
set -euo pipefail

# cmake/FindCudnnFrontend.cmake reads this line. 1.18 is the last that only calls cuDNN: later ones bring kernels of
# their own, which need the run-time compiler and the driver at link time.
version=1.18.0
sha256=6c023539ca6de99234cf5102c3ec0d6af817f5396fc93028a22ba5b834a35b8a
wheel=nvidia_cudnn_frontend-$version-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl

fail() {
  echo "fetch_cudnn_frontend.sh: $*" >&2
  exit 1
}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid
target=$cache/cudnn-frontend-$version
if [ -f "$target/include/cudnn_frontend.h" ]; then
  echo "cudnn-frontend $version: already in $target"
  exit 0
fi
python3 -m pip --version >/dev/null 2>&1 || fail "needs pip (on Debian: apt-get install python3-pip)"

mkdir -p "$cache"
work=$(mktemp -d "$cache/cudnn-frontend.XXXXXX")
trap 'rm -rf "$work"' EXIT
# One wheel for every machine: the headers in it are the same for all platforms and versions of Python.
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  --platform manylinux_2_28_x86_64 --dest "$work" "nvidia-cudnn-frontend==$version" >"$work/log" 2>&1 ||
  fail "pip download failed: $(tail -n 1 "$work/log")"
[ -f "$work/$wheel" ] || fail "pip brought another file than $wheel"
echo "$sha256  $work/$wheel" | sha256sum --check --status || fail "$wheel does not have the checksum $sha256"
python3 -m zipfile -e "$work/$wheel" "$work/unpacked"

mkdir "$work/result"
mv "$work/unpacked/include" "$work/unpacked/nvidia_cudnn_frontend-$version.dist-info" "$work/result/"
mv -T "$work/result" "$target"
echo "cudnn-frontend $version: in $target"
