#!/usr/bin/env bash
# Sets up, builds and runs all tests. The last line is "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$0")"

usage() {
  cat <<'TXT'
usage: ./test.sh [--quick] [--unity] [-k REGEX]
  --quick    leave out the tests labelled slow
  --unity    compile up to ten tests, commands and benchmarks as one file: a faster clean build, slower after a change
  -k REGEX   run only the test programs, and the cases Suite.Name, that match
Installs missing Debian packages (scripts/setup.sh), builds in build/release, runs the tests two at a time.
Sanitizers, fuzzers and linters: .ci/run; see docs/testing.md.
TXT
}

options=() unity=
while [ $# -gt 0 ]; do
  case $1 in
    --quick) options+=(--quick); shift ;;
    --unity) unity='^braid_(cli|bench_.*)$|_tests$'; shift ;;
    -k) [ $# -ge 2 ] || { usage >&2; exit 2; }; options+=(-k "$2"); shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) echo "test.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
done

# If anything stops the run before the tests, report it as one failure in the same format.
trap 'status=$?; [ $status -eq 0 ] || echo "0 passed, 1 failed, 0 skipped"; exit $status' EXIT
./scripts/setup.sh
cmake --preset release -D BRAID_UNITY="$unity"
cmake --build --preset release
trap - EXIT
exec ./scripts/run_tests.py --preset release "${options[@]}"
