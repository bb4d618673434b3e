#!/bin/sh
# Trains a tiny model in one process and in a process per rank, kills a rank of a third run, and compares losses.
#
#   scripts/compare_processes.sh build/release/braid [cuda|cpu] [ranks] [--set key=value ...]
#
# Prints one line per check and exits 1 if one fails. Every run is ended after 5 minutes.
set -u
braid=$(realpath "${1:?the program braid}")
device=${2:-cuda}
ranks=${3:-2}
shift $(($# < 3 ? $# : 3))
work=$(mktemp -d)
failed=0
trap 'rm -rf "$work"' EXIT

python3 - "$work/corpus.txt" <<'EOF'
import random, sys
random.seed(3)
words = ["the cat", "a dog", "my bird", "sees", "hears", "finds", "likes", "always", "quietly"]
with open(sys.argv[1], "w") as out:
    for i in range(3000):
        out.write(" ".join(random.choice(words) for _ in range(6)) + (".\n\n" if i % 3 == 2 else ".\n"))
EOF
cat > "$work/run.toml" <<EOF
[model]
layers = 2
width = 128
heads = 2
[train]
sequence = 128
microbatch = 2
global_batch = $((8 * ranks))
steps = 12
dtype = "$([ "$device" = cuda ] && echo bfloat16 || echo float32)"
[parallel]
ranks = $ranks
[data]
train = "corpus.txt"
split = "90,10,0"
[eval]
interval = 6
batches = 2
[checkpoint]
interval = 4
[logging]
trace_steps = [5]
[runtime]
device = "$device"
timeout_s = 30
EOF
cd "$work" || exit 1

say() { # result, what
    echo "$1: $2"
    [ "$1" = ok ] || failed=1
}

train() { # folder, processes, further arguments
    folder=$1 processes=$2
    shift 2
    timeout 300 "$braid" train run.toml --set "logging.run_folder=$folder" --set "runtime.processes=$processes" "$@" \
        > "$folder.out" 2> "$folder.err"
}

compare() { # two folders: largest relative difference of losses and norms
    python3 - "$1" "$2" <<'EOF'
import json, sys
def numbers(folder):
    with open(folder + "/metrics.jsonl") as lines:
        return [value for line in map(json.loads, lines) for key, value in sorted(line.items())
                if "loss" in key or "norm" in key]
a, b = numbers(sys.argv[1]), numbers(sys.argv[2])
worst = max((abs(x - y) / max(abs(x), 1e-9) for x, y in zip(a, b)), default=1)
print(f"{len(a)} and {len(b)} numbers, largest relative difference {worst:.3g}")
sys.exit(0 if a and len(a) == len(b) and worst < 1e-3 else 1)
EOF
}

for processes in one per_rank; do
    if train "$processes" "$processes" "$@"; then
        say ok "processes = $processes: $(grep -h 'finished' "$processes.out")"
        grep -hE '^(device   |setup |timeline |traced )' "$processes.out"
    else
        say FAILED "processes = $processes, status $?"
        tail -5 "$processes.out" "$processes.err"
    fi
done
difference=$(compare one per_rank) && say ok "$difference" || say FAILED "$difference"

# A rank is killed in the middle; the run goes on from its last checkpoint.
train killed per_rank --set train.steps=20000 --set optimizer.schedule=constant "$@" &
launcher=$!
for _ in $(seq 240); do
    [ "$(cat killed/metrics.jsonl 2> /dev/null | wc -l)" -gt 10 ] && break
    sleep 0.5
done
victim=$(for entry in /proc/[0-9]*/environ; do
    if cat "$entry" 2> /dev/null | tr '\0' '\n' | grep -qx "RANK=$((ranks - 1))" &&
        [ "$(readlink "/proc/$(echo "$entry" | cut -d/ -f3)/cwd")" = "$work" ]; then
        echo "$entry" | cut -d/ -f3
    fi
done | head -1)
if [ -n "$victim" ]; then
    begin=$(date +%s)
    kill -9 "$victim"
    wait "$launcher"
    status=$?
    took=$(($(date +%s) - begin))
    [ "$took" -le 30 ] && [ "$status" -ne 0 ] && [ "$status" -ne 124 ] &&
        say ok "rank $((ranks - 1)) killed: status $status after $took s" ||
        say FAILED "rank $((ranks - 1)) killed: status $status after $took s"
    cat killed.err
    steps=$(ls killed/checkpoints | sed -n 's/step_0*//p' | sort -n | tail -1)
    train killed per_rank --set train.steps=20000 --set optimizer.schedule=constant --stop-after $((steps + 4)) "$@" &&
        say ok "resumed after step $steps: $(grep -h 'stopped after' killed.out)" ||
        { say FAILED "resumed after step $steps"; tail -5 killed.out killed.err; }
else
    kill "$launcher"
    say FAILED "no process of rank $((ranks - 1)) was found"
    tail -5 killed.out killed.err
fi
exit $failed
