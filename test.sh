#!/usr/bin/env bash
# Sets up, builds and runs all tests. The last line is "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")"

usage() {
  cat <<'TXT'
usage: ./test.sh [--quick] [--single] [-k REGEX]
  --quick    leave out the tests labelled slow
  --single   compile each source by itself; without it up to ten become one file, which builds faster from nothing and slower
             after a change
  -k REGEX   run only the test programs, and the cases Suite.Name, that match
Installs missing Debian packages (scripts/setup.sh), builds in build/release, runs the tests two at a time.
Sanitizers, fuzzers and linters: .ci/run; see docs/testing.md.
TXT
}

options=() unity=.
while [ $# -gt 0 ]; do
  case $1 in
    --quick) options+=(--quick); shift ;;
    --single) unity=; shift ;;
    -k) [ $# -ge 2 ] || { usage >&2; exit 2; }; options+=(-k "$2"); shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "test.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
done

# If anything stops the run before the tests, report it as one failure in the same format.
trap 'status=$?; [ $status -eq 0 ] || echo "0 passed, 1 failed, 0 skipped"; exit $status' EXIT
./scripts/setup.sh
cmake --preset release -D BRAID_UNITY="$unity" -D BRAID_TESTS=ON -D BRAID_BENCH=ON -D BRAID_CUDA=AUTO
cmake --build --preset release
trap - EXIT
exec ./scripts/run_tests.py --preset release "${options[@]}"
