#!/usr/bin/env bash
# Runs every libFuzzer program for some seconds, two at a time, from the seeds in tests/fuzz/corpus and from what fuzzers found
# before (tests/fuzz/kept). Before that, each program reads some large inputs once, which are made anew
# (tests/fuzz/make_corpus.py --large). New inputs go to build/fuzz/corpus, inputs that fail to build/fuzz/artifacts.
# Nothing tracked changes, except with --keep: then the smallest part of the inputs that reaches as much replaces tests/fuzz/kept.
# The last line is "N passed, N failed, N skipped", counted in programs.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1-}" = -h ] || [ "${1-}" = --help ]; then
  echo "usage: scripts/fuzz.sh [--keep] [seconds per program, default 30] [names, default all]"
  exit 0
fi
export KEEP=0
if [ "${1-}" = --keep ]; then
  KEEP=1
  shift
fi
seconds=${1:-30}
case $seconds in '' | *[!0-9]*) echo "fuzz.sh: seconds must be a whole number, not \"$seconds\"" >&2; exit 2 ;; esac
shift || true

cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
rm -rf build/fuzz/large
python3 tests/fuzz/make_corpus.py --large build/fuzz/large

if [ $# -gt 0 ]; then
  names=("$@")
else
  names=()
  for source in tests/fuzz/fuzz_*.cpp; do
    name=${source##*/fuzz_}
    names+=("${name%.cpp}")
  done
fi

export UBSAN_OPTIONS=print_stacktrace=1
fuzz_one() {
  local name=$1 seconds=$2 status=0
  local work=build/fuzz/corpus/$name kept=build/fuzz/kept/$name log=build/fuzz/$name.log seeds=("tests/fuzz/corpus/$name")
  [ "$name" != program ] || seeds+=(tests/programs tests/reject)
  rm -rf "$kept"
  tests/fuzz/kept_corpus.py unpack "$name" "$kept"
  mkdir -p "$work" build/fuzz/artifacts
  # -timeout: one input may not take longer than a human would wait; -rss_limit_mb: nor trust a length it reads.
  local program=build/fuzz/tests/fuzz/fuzz_$name limits=(-timeout=10 -rss_limit_mb=2048 -artifact_prefix="build/fuzz/artifacts/$name-")
  : >"$log"
  [ ! -d "build/fuzz/large/$name" ] || "$program" "${limits[@]}" "build/fuzz/large/$name"/* >>"$log" 2>&1 || status=$?
  [ $status -ne 0 ] || "$program" "${limits[@]}" -max_total_time="$seconds" -max_len=65536 "$work" "$kept" "${seeds[@]}" >>"$log" 2>&1 || status=$?
  if [ $status -eq 0 ]; then
    echo "passed: $name, $(tail -n 1 "$log")"
    [ "$KEEP" = 0 ] || tests/fuzz/kept_corpus.py renew "$name" "$program" "$work"
  else
    tail -n 60 "$log"
    echo "failed: $name, exit status $status, log $log, input in build/fuzz/artifacts"
  fi
}
export -f fuzz_one

results=$(printf '%s\n' "${names[@]}" | xargs -P 2 -I{} bash -c 'fuzz_one "$1" "$2"' _ {} "$seconds")
echo "$results"
passed=$(grep -c '^passed: ' <<<"$results" || true)
failed=$((${#names[@]} - passed))
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
