#!/usr/bin/env bash
# Compiles attention and its repeatable backward for Hopper (scripts/attention_kernels) into a cache of the user, where CMake finds
# them; without them the CUDA backend's attention is all cuDNN's. Fetches 125 MB of wheels from PyPI for that, and keeps none of them.
# Does nothing when the objects are there.
set -euo pipefail

here=$(cd "$(dirname "$0")/attention_kernels" && pwd)

fail() {
  echo "build_attention_kernels.sh: $*" >&2
  exit 1
}

# cmake/FindAttentionKernels.cmake makes the same name.
checksum() { sha256sum "$here/$1" | cut -c1-8; }
cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid
target=$cache/attention-kernels-$(checksum compile.py)-$(checksum requirements.txt)
if [ -f "$target/attention_forward_128.o" ]; then
  echo "attention kernels: already in $target"
  exit 0
fi
python3 -m pip --version >/dev/null 2>&1 || fail "needs pip (on Debian: apt-get install python3-pip)"
version=$(python3 -c 'import platform, sys; print("%d.%d" % sys.version_info[:2], platform.machine())')
[ "$version" = "3.11 x86_64" ] || fail "needs Python 3.11 on x86-64 for the packages of requirements.txt, not $version"

mkdir -p "$cache"
work=$(mktemp -d "$cache/attention-kernels.XXXXXX")
trap 'rm -rf "$work"' EXIT
site=$work/site
python3 -m pip install --quiet --no-deps --require-hashes --only-binary=:all: --target "$site" -r "$here/requirements.txt" \
  >"$work/log" 2>&1 || fail "pip install failed: $(tail -n 1 "$work/log")"
PYTHONPATH=$site:$site/nvidia_cutlass_dsl/dsl_packages python3 "$here/compile.py" "$work/result" >"$work/log" 2>&1 ||
  fail "compile.py failed: $(tail -n 1 "$work/log")"
cp "$site/nvidia_cutlass_dsl/cu13/lib/libcuda_dialect_runtime_static.a" "$work/result/"
for package in flash_attn_4 nvidia_cutlass_dsl_libs_cu13; do
  cp "$site/$package"-*.dist-info/licenses/LICENSE "$work/result/LICENSE.$package"
done
mv -T "$work/result" "$target"
echo "attention kernels: in $target"
