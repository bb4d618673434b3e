#!/usr/bin/env bash
# Runs every libFuzzer program for some seconds, two at a time, from the seeds in tests/fuzz/corpus and from what fuzzers found
# before (tests/fuzz/kept). Before that, each program reads some large inputs once, which are made anew
# (tests/fuzz/make_corpus.py --large). New inputs go to build/fuzz/corpus, inputs that fail to build/fuzz/artifacts.
# --preset asan: the fuzzers of that build (and of its folder), whose libraries are those of its tests; they see less of comparisons.
# Nothing tracked changes, except with --keep: then the smallest part of the inputs that reaches as much replaces tests/fuzz/kept.
# The last line is "N passed, N failed, N skipped", counted in programs.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1-}" = -h ] || [ "${1-}" = --help ]; then
  echo "usage: scripts/fuzz.sh [--keep] [--preset fuzz|asan] [seconds per program, default 30] [names, default all]"
  exit 0
fi
export KEEP=0 BUILD=build/fuzz
if [ "${1-}" = --keep ]; then
  KEEP=1
  shift
fi
preset=fuzz
if [ "${1-}" = --preset ]; then
  preset=${2-}
  case $preset in fuzz | asan) ;; *) echo "fuzz.sh: --preset is fuzz or asan, not \"$preset\"" >&2; exit 2 ;; esac
  BUILD=build/$preset
  shift 2
fi
seconds=${1:-30}
case $seconds in '' | *[!0-9]*) echo "fuzz.sh: seconds must be a whole number, not \"$seconds\"" >&2; exit 2 ;; esac
shift || true

cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" --target braid_fuzzers
rm -rf "$BUILD/large"
python3 tests/fuzz/make_corpus.py --large "$BUILD/large"

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
  local work=$BUILD/corpus/$name kept=$BUILD/kept/$name log=$BUILD/$name.log seeds=("tests/fuzz/corpus/$name")
  [ "$name" != program ] || seeds+=(tests/programs tests/reject)
  rm -rf "$kept"
  tests/fuzz/kept_corpus.py unpack "$name" "$kept"
  mkdir -p "$work" "$BUILD/artifacts"
  # -timeout: one input may not take longer than a human would wait; -rss_limit_mb: nor trust a length it reads.
  # -malloc_limit_mb: more than the 2 GiB of zstd's largest window, of which only what is used counts.
  local program=$BUILD/tests/fuzz/fuzz_$name limits=(-timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=3072 -artifact_prefix="$BUILD/artifacts/$name-")
  : >"$log"
  [ ! -d "$BUILD/large/$name" ] || "$program" "${limits[@]}" "$BUILD/large/$name"/* >>"$log" 2>&1 || status=$?
  [ $status -ne 0 ] || "$program" "${limits[@]}" -max_total_time="$seconds" -max_len=65536 "$work" "$kept" "${seeds[@]}" >>"$log" 2>&1 || status=$?
  if [ $status -eq 0 ]; then
    echo "passed: $name, $(tail -n 1 "$log")"
    [ "$KEEP" = 0 ] || tests/fuzz/kept_corpus.py renew "$name" "$program" "$work"
  else
    tail -n 60 "$log"
    echo "failed: $name, exit status $status, log $log, input in $BUILD/artifacts"
  fi
}
export -f fuzz_one

results=$(printf '%s\n' "${names[@]}" | xargs -P 2 -I{} bash -c 'fuzz_one "$1" "$2"' _ {} "$seconds")
echo "$results"
passed=$(grep -c '^passed: ' <<<"$results" || true)
failed=$((${#names[@]} - passed))
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
