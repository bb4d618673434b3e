#!/usr/bin/env bash
# Compiles kernels for Hopper (scripts/sm90_kernels: attention, its repeatable backward, products with SwiGLU in their epilogue) into a
# cache of the user, where CMake finds them; without them the CUDA backend has cuDNN's attention and separate kernels for SwiGLU.
# Fetches 125 MB of wheels from PyPI for that, and keeps none of them. Does nothing when the objects are there.
set -euo pipefail

here=$(cd "$(dirname "$0")/sm90_kernels" && pwd)

fail() {
  echo "build_sm90_kernels.sh: $*" >&2
  exit 1
}

# cmake/FindSm90Kernels.cmake makes the same name: of the files' checksums in the order of their names.
checksum() { (cd "$here" && ls -- *.py *.txt | LC_ALL=C sort | xargs sha256sum | cut -c1-64 | tr -d '\n' | sha256sum | cut -c1-16); }
cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid
target=$cache/sm90-kernels-$(checksum)
if [ -f "$target/products.inc" ]; then
  echo "kernels for Hopper: already in $target"
  exit 0
fi
python3 -m pip --version >/dev/null 2>&1 || fail "needs pip (on Debian: apt-get install python3-pip)"
version=$(python3 -c 'import platform, sys; print("%d.%d" % sys.version_info[:2], platform.machine())')
[ "$version" = "3.11 x86_64" ] || fail "needs Python 3.11 on x86-64 for the packages of requirements.txt, not $version"

mkdir -p "$cache"
work=$(mktemp -d "$cache/sm90-kernels.XXXXXX")
trap 'rm -rf "$work"' EXIT
site=$work/site
python3 -m pip install --quiet --no-deps --require-hashes --only-binary=:all: --target "$site" -r "$here/requirements.txt" \
  >"$work/log" 2>&1 || fail "pip install failed: $(tail -n 1 "$work/log")"
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$site:$site/nvidia_cutlass_dsl/dsl_packages \
  python3 "$here/compile.py" "$work/result" >"$work/log" 2>&1 || fail "compile.py failed: $(tail -n 1 "$work/log")"
cp "$site/nvidia_cutlass_dsl/cu13/lib/libcuda_dialect_runtime_static.a" "$work/result/"
for package in flash_attn_4 nvidia_cutlass_dsl_libs_cu13 quack_kernels; do
  cp "$site/$package"-*.dist-info/licenses/LICENSE "$work/result/LICENSE.$package"
done
mv -T "$work/result" "$target"
echo "kernels for Hopper: in $target"
