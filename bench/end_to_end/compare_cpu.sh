#!/usr/bin/env bash
# Tokens per second of one GPT-2-shaped training step on all cores: braid against PyTorch eager, and against plain loops.
#
#   bench/end_to_end/compare_cpu.sh [--rounds N] [--vocabulary N] [--steps N] [--no-naive] [--current PYTHON]
#
# braid and torch run alternately, so that a machine that slows down slows both. A run's figure is the median of its timed
# steps, the first three left out; the table shows median, minimum and maximum over runs. Needs build/release/braid
# (./test.sh or `cmake --build --preset release`) and Debian's python3-torch; PYTHON=... names another Python with torch.
#
# torch runs twice per round: as Debian installs it, and tuned. As installed, the threads of OpenMP and those of OpenBLAS
# spin for each other's cores, and every large tensor is mapped, zeroed by the kernel and unmapped again; together that
# costs more than half of the step. Tuned means a BLAS on OpenMP's own threads if libopenblas0-openmp is installed, threads
# that sleep instead of spin if not, and a malloc that keeps its memory. The goal is set by the tuned one.
# --current names a Python with a current torch, such as build/reference/bin/python (scripts/install_reference.sh): it runs
# eagerly and by torch.compile, both with the malloc that keeps its memory.
set -euo pipefail
cd "$(dirname "$0")/../.."

ROUNDS=5
VOCABULARY=4096
STEPS=20
NAIVE=yes
CURRENT=
while [[ $# -gt 0 ]]; do
  case $1 in
    --rounds) ROUNDS=$2; shift 2 ;;
    --vocabulary) VOCABULARY=$2; shift 2 ;;
    --steps) STEPS=$2; shift 2 ;;
    --no-naive) NAIVE=no; shift ;;
    --current) CURRENT=$2; shift 2 ;;
    *) echo "compare_cpu.sh: unknown option $1" >&2; exit 2 ;;
  esac
done

BRAID=${BRAID:-build/release/braid}
PYTHON=${PYTHON:-/usr/bin/python3}
WARMUP=3
FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT

# Some machines force OpenBLAS to an old core type; both sides use it, and both shall choose for the processor at hand.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE

# Each run_* prints one number: the median tokens per second of its timed steps.

run_braid() {
  local run=$FOLDER/run
  rm -rf "$run"
  "$BRAID" train bench/end_to_end/gpt2_384.toml --set "data.train=$FOLDER/random.txt" \
    --set "logging.run_folder=$run" --set "train.steps=$((WARMUP + STEPS))" \
    --set "model.vocabulary=$VOCABULARY" >"$FOLDER/braid.log" 2>&1 || { cat "$FOLDER/braid.log" >&2; return 1; }
  tokens_per_s_of_metrics "$run/metrics.jsonl"
}

run_torch() {
  local python=$1
  shift
  "$python" bench/end_to_end/torch_gpt2_cpu.py --vocabulary "$VOCABULARY" --steps "$STEPS" --warmup "$WARMUP" "$@" |
    "$PYTHON" -c 'import json, sys; print(json.load(sys.stdin)["tokens_per_s"])'
}

run_torch_as_installed() { run_torch "$PYTHON"; }

keep_memory() { export MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=8589934592 MALLOC_TOP_PAD_=268435456; }

run_torch_current() {
  keep_memory
  run_torch "$CURRENT" "$@"
}

run_torch_tuned() {
  local openmp_blas
  openmp_blas=/usr/lib/$(gcc -print-multiarch)/openblas-openmp
  keep_memory
  if [[ -e $openmp_blas/libblas.so.3 ]]; then
    export LD_LIBRARY_PATH=$openmp_blas
  else
    export OMP_WAIT_POLICY=PASSIVE OPENBLAS_THREAD_TIMEOUT=4
  fi
  run_torch_as_installed
}

run_naive() {
  "$FOLDER/naive_gpt2" --vocabulary "$VOCABULARY" --steps 3 |
    "$PYTHON" -c 'import json, sys; print(json.load(sys.stdin)["tokens_per_s"])'
}

tokens_per_s_of_metrics() {
  "$PYTHON" - "$1" "$WARMUP" <<'PYTHON'
import json, statistics, sys
records = [json.loads(line) for line in open(sys.argv[1])]
speeds = [record["tokens_per_s"] for record in records if "tokens_per_s" in record]
print(statistics.median(speeds[int(sys.argv[2]):]))
PYTHON
}

print_table() {
  "$PYTHON" - "$FOLDER" <<'PYTHON'
import pathlib, statistics, sys
folder = pathlib.Path(sys.argv[1])
speeds = {p.suffix[1:]: [float(x) for x in p.read_text().split()] for p in folder.glob("speeds.*")}
braid = statistics.median(speeds["braid"])
print(f"{'tokens/s':14} {'median':>10} {'min':>10} {'max':>10} {'runs':>5} {'braid is':>9}")
for name in ("braid", "torch", "torch_tuned", "torch_current", "torch_compiled", "naive"):
    if name in speeds:
        s = speeds[name]
        m = statistics.median(s)
        print(f"{name:14} {m:10.0f} {min(s):10.0f} {max(s):10.0f} {len(s):5} {braid / m:8.2f}x")
PYTHON
}

# Bytes from a fixed seed: what the tokens are does not change how long a step takes.
"$PYTHON" -c 'import random; random.seed(1)
for _ in range(20000): print("".join(random.choices("abcdefghijklmnopqrstuvwxyz ", k=63)))' >"$FOLDER/random.txt"

echo "$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-), $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)"
for ((round = 1; round <= ROUNDS; ++round)); do
  run_braid | tee -a "$FOLDER/speeds.braid" | sed "s/^/round $round  braid  /"
  run_torch_as_installed | tee -a "$FOLDER/speeds.torch" | sed "s/^/round $round  torch  /"
  (run_torch_tuned) | tee -a "$FOLDER/speeds.torch_tuned" | sed "s/^/round $round  torch_tuned  /"
  if [[ -n $CURRENT ]]; then
    (run_torch_current) | tee -a "$FOLDER/speeds.torch_current" | sed "s/^/round $round  torch_current  /"
    (run_torch_current --compile) | tee -a "$FOLDER/speeds.torch_compiled" | sed "s/^/round $round  torch_compiled  /"
  fi
done
if [[ $NAIVE == yes ]]; then
  g++ -std=c++20 -O2 -pthread bench/end_to_end/naive_gpt2.cpp -o "$FOLDER/naive_gpt2"
  run_naive | tee -a "$FOLDER/speeds.naive" | sed "s/^/naive loops  /"
fi
print_table
