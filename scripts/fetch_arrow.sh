#!/usr/bin/env bash
# Puts Apache Arrow's C++ libraries (libarrow, libparquet) and their headers, with which braid reads Parquet, into a cache of the
# user, where CMake finds them. They have no Debian package; they come in pyarrow's wheel on PyPI. Does nothing when they are there.
set -euo pipefail

# cmake/FindArrowParquet.cmake reads this line.
version=26.0.1

fail() {
  echo "fetch_arrow.sh: $*" >&2
  exit 1
}

machine=$(uname -m)
case $machine in
  x86_64) sha256=c718bf97a92a6dea97fd1062c3b9f9e2e83cb9cc926e752289fa4ffff41738f9 ;;
  aarch64) sha256=6c18167774fb599d42444b7ac558a893d49e750fb14232b538955e6f0d1d51ea ;;
  *) fail "PyPI has no pyarrow for $machine; install Arrow and set ARROW_ROOT" ;;
esac
# One wheel for every version of Python: the libraries in it do not depend on it.
wheel=pyarrow-$version-cp312-cp312-manylinux_2_28_$machine.whl

cache=${XDG_CACHE_HOME:-$HOME/.cache}/braid
target=$cache/arrow-$version
if [ -f "$target/include/parquet/file_reader.h" ]; then
  echo "arrow $version: already in $target"
  exit 0
fi
python3 -m pip --version >/dev/null 2>&1 || fail "needs pip (on Debian: apt-get install python3-pip)"

mkdir -p "$cache"
work=$(mktemp -d "$cache/arrow.XXXXXX")
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  --platform "manylinux_2_28_$machine" --dest "$work" "pyarrow==$version" >"$work/log" 2>&1 ||
  fail "pip download failed: $(tail -n 1 "$work/log")"
[ -f "$work/$wheel" ] || fail "pip brought another file than $wheel"
echo "$sha256  $work/$wheel" | sha256sum --check --status || fail "$wheel does not have the checksum $sha256"
python3 -m zipfile -e "$work/$wheel" "$work/unpacked"

mkdir -p "$work/result/lib"
mv "$work/unpacked/pyarrow/include" "$work/unpacked/pyarrow-$version.dist-info/licenses" "$work/result/"
mv "$work/unpacked/pyarrow"/lib{arrow,parquet}.so.[0-9]* "$work/result/lib/"
mv -T "$work/result" "$target"
echo "arrow $version: in $target"
