#!/usr/bin/env bash
# Overlap off and on, measured on CPU ranks with emulated links, beside what the simulator says from a profile of this machine.
#
#   bench/end_to_end/measured_overlap.sh [--rounds N] [--layouts "dp2 pp2 ..."] [--keep FOLDER]
#
# For each layout: `braid calibrate` with as many ranks at once and threads per rank, then by turns a run without and one with
# overlap, each compared with its prediction by `braid report --cost`. A run's figure is the median of its traced steps (the
# first three steps are not traced), the table has the median over rounds. Needs two cores that nobody else uses, and
# build/release/braid; BRAID=... names another program.
set -euo pipefail
cd "$(dirname "$0")/../.."

ROUNDS=3
LAYOUTS="dp2 dp2-parameters tp2 cp2 pp2 pp2-wgrads dp4"
FOLDER=
while [[ $# -gt 0 ]]; do
  case $1 in
    --rounds) ROUNDS=$2; shift 2 ;;
    --layouts) LAYOUTS=$2; shift 2 ;;
    --keep) FOLDER=$2; shift 2 ;;
    *) echo "measured_overlap.sh: unknown option $1" >&2; exit 2 ;;
  esac
done

BRAID=${BRAID:-build/release/braid}
RUN_FILE=bench/end_to_end/measured_overlap.toml
if [[ -z $FOLDER ]]; then
  FOLDER=$(mktemp -d)
  trap 'rm -rf "$FOLDER"' EXIT
fi
mkdir -p "$FOLDER"

# Some machines force OpenBLAS to an old core type.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE

python3 -c '
import random, sys
random.seed(1)
sys.stdout.write("".join(chr(random.randrange(32, 127)) for _ in range(400000)))' >"$FOLDER/random.txt"

# Settings of a layout, of its step without overlap, and of the one with it. Links are such that communication is about a
# third of the step without overlap where cores are like those of bench/overlap.md.
settings() {
  local pipeline="parallel.pipeline=2 train.microbatch=2 links.pipeline_gb_per_s=0.05 links.pipeline_latency_us=20"
  local messages="overlap.mode=manual overlap.overlap_p2p_comm=true overlap.overlap_p2p_comm_warmup_flush=true"
  messages+=" overlap.overlap_p2p_backward_on_comm_stream=true"
  case $1:$2 in
    dp2:layout) echo train.microbatch=4 links.data_gb_per_s=0.15 links.data_latency_us=20 ;;
    dp2-parameters:layout) echo train.microbatch=4 parallel.shard=parameters links.data_gb_per_s=0.25 links.data_latency_us=20 ;;
    tp2:layout) echo parallel.tensor=2 parallel.sequence_parallel=true train.microbatch=4 memory.recompute=norms \
      links.tensor_gb_per_s=0.4 links.tensor_latency_us=20 ;;
    cp2:layout) echo parallel.context=2 train.microbatch=4 links.context_gb_per_s=0.15 links.context_latency_us=20 \
      links.data_gb_per_s=2 ;;
    pp2:layout | pp2-wgrads:layout) echo "$pipeline" ;;
    dp4:layout) echo parallel.ranks=4 train.microbatch=2 links.data_gb_per_s=0.15 links.data_latency_us=20 ;;
    pp2-wgrads:off) echo "$messages" ;;
    pp2-wgrads:auto) echo "$messages overlap.overlap_p2p_wgrad_delayed_layer_number=1" \
      overlap.overlap_p2p_with_transformer_layer_wgrad=true ;;
    *:off) echo overlap.mode=off ;;
    *:auto) echo overlap.mode=auto ;;
  esac
}

as_options() {
  for setting in "$@"; do printf -- '--set %s ' "$setting"; done
}

read -ra NAMES <<<"$LAYOUTS"
for layout in "${NAMES[@]}"; do
  # shellcheck disable=SC2046
  "$BRAID" calibrate --device cpu --quick --config $RUN_FILE $(as_options $(settings "$layout" layout)) \
    --out "$FOLDER/$layout.json" >"$FOLDER/$layout.calibrate.log"
  for round in $(seq "$ROUNDS"); do
    for mode in off auto; do
      run=$FOLDER/$layout-$mode-$round
      rm -rf "$run"
      # shellcheck disable=SC2046
      "$BRAID" train $RUN_FILE --set "data.train=$FOLDER/random.txt" --set "logging.run_folder=$run" \
        $(as_options $(settings "$layout" layout) $(settings "$layout" $mode)) >"$run.log"
      "$BRAID" report "$run" --cost "$FOLDER/$layout.json" >"$run.prediction"
    done
  done
done
python3 bench/end_to_end/measured_overlap.py "$FOLDER" "${NAMES[@]}"
