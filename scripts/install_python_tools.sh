#!/usr/bin/env bash
# Installs what builds and tests the Python module (nanobind, scikit-build-core, auditwheel, pytest, NumPy) from PyPI into
# build/python_tools, a virtual environment. Does nothing if they are there.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=python/requirements.txt
target=build/python_tools
python=${1:-python3}

fail() {
  echo "install_python_tools.sh: $*" >&2
  exit 1
}

cmp -s "$requirements" "$target/requirements.txt" && exit 0
work=$target.log
mkdir -p build
trap 'rm -f "$work"' EXIT
rm -rf "$target"
"$python" -m venv "$target" >"$work" 2>&1 || fail "no virtual environment (on Debian: apt-get install python3-venv): $(tail -n 1 "$work")"
"$target/bin/python" -m pip install --quiet --require-hashes --only-binary=:all: -r "$requirements" >"$work" 2>&1 ||
  fail "pip install failed: $(tail -n 1 "$work")"
cp "$requirements" "$target/requirements.txt"
echo "python tools: installed in $target"
