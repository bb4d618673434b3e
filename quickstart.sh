#!/usr/bin/env bash
# From a fresh Debian 12 machine to a trained model: packages, build, text, tokenizer, training, a sample, a report.
set -euo pipefail
cd "$(dirname "$0")"

usage() {
  cat <<'TXT'
usage: ./quickstart.sh [--fresh] [-- OPTIONS OF braid train]
  --fresh   train from scratch; without it a second start continues or reuses the finished run
Makes build/release/braid, data/quickstart (corpus, tokenizer, tokens) and runs/quickstart. Whatever exists is reused.
Example: ./quickstart.sh --fresh -- --set train.steps=1000
TXT
}

fresh=0
while [ $# -gt 0 ]; do
  case $1 in
    --fresh) fresh=1; shift ;;
    --) shift; break ;;
    -h | --help) usage; exit 0 ;;
    *) echo "quickstart.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
done

step() { printf '\n== %s\n' "$*"; }

step "Packages and build"
./scripts/setup.sh
# Only what the first run needs: sources compiled up to ten as one file, and kernels for a GPU only where there is one.
cuda=OFF
if nvidia-smi -L >/dev/null 2>&1; then cuda=AUTO; fi
cmake --preset release -D BRAID_UNITY=. -D BRAID_TESTS=OFF -D BRAID_BENCH=OFF -D BRAID_CUDA=$cuda >/dev/null
cmake --build --preset release --target braid
braid=build/release/braid

data=data/quickstart
step "Text, tokenizer, tokens ($data)"
[ -s $data/corpus.txt ] || ./scripts/make_corpus.py $data/corpus.txt
[ -s $data/tokenizer.model ] ||
  $braid tokenize --input $data/corpus.txt --document-break marker --train-vocabulary 4096 --output $data/tokenizer
[ -s $data/corpus.idx ] ||
  $braid tokenize --input $data/corpus.txt --document-break marker --tokenizer $data/tokenizer.model --output $data/corpus --overwrite
$braid inspect $data/corpus

step "Training (two to three minutes on two cores)"
[ $fresh -eq 0 ] || rm -rf runs/quickstart
$braid train examples/quickstart.toml "$@"

step "A sample"
$braid generate runs/quickstart --prompt $'compiler\n\n   <programming> A program which' --tokens 120 --temperature 0.7

step "The run (runs/quickstart)"
cat <<'TXT'
report.html     loss, timeline, exposed communication, memory: open it in a browser
trace.json      the traced steps: open it in ui.perfetto.dev
metrics.jsonl   one line per step; events.out.tfevents.* the same for TensorBoard
checkpoints     the last ones; ./quickstart.sh continues from the newest
config.toml     every setting of the run
TXT
