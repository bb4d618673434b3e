#!/usr/bin/env bash
# Makes a Debian package of the program, and tries it in a root of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TXT'
usage: scripts/build_deb.sh [--root FOLDER]
  --root FOLDER  install the package in this root of a Debian 12 by apt, and train a step there; needs to be root
                 (debootstrap --variant=minbase bookworm FOLDER)
Builds in build/deb, for processors with AVX2; the package is in build/deb/packages.
TXT
}

root=
while [ $# -gt 0 ]; do
  case $1 in
    --root) [ $# -ge 2 ] || { usage >&2; exit 2; }; root=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; echo "build_deb.sh: unknown option $1" >&2; exit 1 ;;
  esac
done

flags=
[ "$(uname -m)" != x86_64 ] || flags=-march=x86-64-v3
cmake -S . -B build/deb -G Ninja -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_FLAGS="$flags" -D BRAID_NATIVE=OFF -D BRAID_TESTS=OFF \
  -D BRAID_BENCH=OFF -D BRAID_UNITY=. -D BRAID_CUDA="${BRAID_CUDA:-AUTO}" \
  -D CMAKE_POSITION_INDEPENDENT_CODE=ON >/dev/null  # the objects of the wheel, for the compiler cache
cmake --build build/deb --target braid
# The component alone: nothing else of the build is needed.
(cd build/deb && rm -rf packages && cpack -G DEB -B packages >/dev/null)
deb=$(ls build/deb/packages/*.deb)
dpkg-deb --info "$deb" | grep -E '^ (Package|Version|Installed-Size|Depends)'

if [ -n "$root" ]; then
  echo "== $root"
  there=$(mktemp -d -p "$root/tmp")
  trap 'rm -rf "$there"' EXIT
  cp "$deb" "$there/braid.deb"
  cp examples/tiny_cpu.toml "$there"
  unshare --pid --fork --mount-proc="$root/proc" chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive sh -euc '
    cd "/tmp/$0"
    apt-get -qq update
    apt-get -qq install -y --no-install-recommends ./braid.deb >/dev/null
    braid --version
    yes "The quick brown fox jumps over the lazy dog." | head -n 2000 >corpus.txt
    braid train tiny_cpu.toml --set train.steps=2 --set eval.interval=0 | tail -n 4
    apt-get -qq remove -y braid-train >/dev/null' "$(basename "$there")"
fi
echo "package $deb"
