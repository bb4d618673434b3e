#!/usr/bin/env bash
# Everything that needs a GPU, in one go; writes bench/gpu/NAME.md, named after the GPU (h200.md), from raw results as JSON lines.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

usage() {
  cat <<'TXT'
usage: bench/gpu/check.sh [option...] [stage...]
stages, in this order (default all):
  tests        GPU tests, with what was skipped and why
  sanitizers   the same under compute-sanitizer: memcheck, and racecheck of our own kernels
  kernels      single kernels beside PyTorch's and beside their floors
  end_to_end   training steps beside PyTorch, in turns
  floors       how fast those steps could be, op by op
  loss_curve   a model of 100 M parameters on real text beside the same in PyTorch
  report       the page, from all results so far; also runs after any other stage
stages that run only if named, for a machine with 2, 4 or 8 GPUs:
  connections  GPU tests of layouts and copies with 1, 8 and 32 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS)
  layouts      every layout of up to 8 ranks, which share the GPUs (1 is enough): the losses of one rank, the same bits (layouts.py)
  emulated     one rank of each 8-GPU case at full size on one GPU; braid emulate simulates the others (emulated.py)
  processes    a process per rank: the bits of one process, late ranks, ranks that are killed or stopped, resuming (processes.py)
  multi        training steps on all its GPUs beside PyTorch, in turns: layouts of cases/multi
  multi_report the page of multi (bench/gpu/NAMExN.md), from all results so far; also runs after multi
options:
  --bin FOLDER      build folder, or a folder with the programs and the libraries that this machine lacks (build/release)
  --results FOLDER  raw results, which accumulate over calls (build/gpu_results)
  --report FILE     the page (bench/gpu/NAME.md)
  --case NAME       end_to_end, floors: only this case of bench/gpu/cases; may be repeated
  --rounds N        end_to_end: turns of both sides (3)
  --choose          end_to_end: measure the settings that cases leave open instead of taking cases/choices.json
  --tool NAME       sanitizers: only memcheck, or only racecheck
  --program NAME    tests, sanitizers: only braid_cuda_tests, or only braid_cuda_runtime_tests
  --data PREFIX     loss_curve: tokens, with tokenizer.model beside them (data/quickstart/corpus, made if missing)
  --python PROGRAM  the Python that has PyTorch (python3)
  --                multi, layouts, emulated: what follows goes to their script (--seconds, --rounds, --techniques, --only, ...)
  --small           a rehearsal in minutes, also on a machine without a GPU; the page goes to the results
The exit status is 0 if all stages succeeded. Programs: cmake --build --preset release --target braid_gpu_check
TXT
}

all_stages=(tests sanitizers kernels end_to_end floors loss_curve)
multi_stages=(connections processes layouts emulated multi multi_report)
bin=$root/build/release results=$root/build/gpu_results report='' python=python3 small=()
bench_options=() choose=() data=() tools=() programs=() multi_options=()

fail() { echo "check.sh: $*" >&2; exit 2; }

stages=()
while [ $# -gt 0 ]; do
  case $1 in
    --bin | --results | --report | --case | --rounds | --data | --python | --tool | --program)
      [ $# -gt 1 ] || fail "$1 needs a value" ;;&
    --bin) bin=$2; shift 2 ;;
    --results) results=$2; shift 2 ;;
    --report) report=$2; shift 2 ;;
    --case) bench_options+=(--case "$2"); shift 2 ;;
    --) shift; multi_options=("$@"); break ;;
    --rounds) choose+=(--rounds "$2"); shift 2 ;;
    --choose) choose+=(--choose); shift ;;
    --data) data=(--data "$2"); shift 2 ;;
    --python) python=$2; shift 2 ;;
    --tool) tools+=(--tool "$2"); shift 2 ;;
    --program) programs+=(--program "$2"); shift 2 ;;
    --small) small=(--small); shift ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; fail "unknown option $1" ;;
    report) stages+=(report); shift ;;
    *) [[ " ${all_stages[*]} ${multi_stages[*]} " == *" $1 "* ]] || { usage >&2; fail "unknown stage $1"; }
       stages+=("$1"); shift ;;
  esac
done
[ ${#stages[@]} -gt 0 ] || stages=("${all_stages[@]}")

[ -d "$bin" ] || fail "there is no folder $bin; build first, or give --bin"
bin=$(cd "$bin" && pwd)
mkdir -p "$results" || fail "cannot make $results"
results=$(cd "$results" && pwd)

# Libraries: first what was carried beside the programs, then those of PyTorch's packages (both sides then run on the same cuBLASLt
# and cuDNN), then wherever this machine keeps what is still missing.
torch_libraries() {
  "$python" -c 'import glob, sys; print(":".join(path for folder in sys.path for path in sorted(glob.glob(folder + "/nvidia/*/lib"))))'
}

set_library_path() {
  local program name folder
  LD_LIBRARY_PATH=$bin:$(torch_libraries):${LD_LIBRARY_PATH:-}
  export LD_LIBRARY_PATH
  for program in "$bin/braid" "$bin/braid_cuda_tests" "$bin/tests/braid_cuda_tests"; do
    for name in $(ldd "$program" 2>/dev/null | awk '/not found/ {print $1}'); do
      folder=$(find /usr /opt -xdev -name "$name" -printf '%h\n' -quit 2>/dev/null)
      [ -n "$folder" ] || fail "$program needs $name, which is not here; put it beside the program"
      LD_LIBRARY_PATH+=:$folder
    done
  done
}

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }

set_library_path
device=cuda
if ! has_gpu; then
  device=cpu
  [ ${#small[@]} -gt 0 ] || [[ "${stages[*]}" =~ ^(report|multi_report|tests|connections)$ ]] ||
    fail "there is no NVIDIA GPU here; --small rehearses on the CPU"
fi

stage_tests() { "$python" "$here/checks.py" tests --bin "$bin" --results "$results" "${programs[@]}"; }

needs_gpu() {
  [ $device = cuda ] || { echo "skipped: $1 needs a GPU"; return 1; }
}

stage_sanitizers() {
  needs_gpu sanitizers || return 0
  "$python" "$here/checks.py" sanitizers --bin "$bin" --results "$results" "${small[@]}" "${tools[@]}" "${programs[@]}"
}

stage_connections() { "$python" "$here/checks.py" connections --bin "$bin" --results "$results" "${programs[@]}"; }

stage_processes() { "$python" "$here/processes.py" --bin "$bin" --results "$results" --device $device; }

stage_layouts() { "$python" "$here/layouts.py" --bin "$bin" --results "$results" --device $device "${multi_options[@]}"; }

stage_emulated() {
  "$python" "$here/emulated.py" --bin "$bin" --results "$results" --device $device "${small[@]}" "${bench_options[@]}" "${multi_options[@]}"
}

stage_kernels() {
  needs_gpu kernels || return 0
  "$python" "$here/checks.py" kernels --bin "$bin" --results "$results"
}

stage_end_to_end() {
  "$python" "$here/end_to_end.py" --bin "$bin" --results "$results" --device $device "${small[@]}" "${bench_options[@]}" "${choose[@]}"
}

stage_floors() {
  needs_gpu floors || return 0
  "$python" "$here/end_to_end.py" --floors --bin "$bin" --results "$results" "${small[@]}" "${bench_options[@]}"
}

stage_loss_curve() {
  "$python" "$here/loss_curve/compare.py" --bin "$bin" --results "$results" --device $device "${small[@]}" "${data[@]}"
}

stage_multi() {
  "$python" "$here/multi.py" --bin "$bin" --results "$results" --device $device "${small[@]}" "${bench_options[@]}" "${choose[@]}" \
    "${multi_options[@]}"
}

write_page() {
  local program=$1 options=(--results "$results" "${small[@]}")
  [ -z "$report" ] || options+=(--report "$report")
  "$python" "$here/$program" "${options[@]}"
}
stage_report() { write_page report.py; }
stage_multi_report() { write_page multi_report.py; }

# The page of one GPU is written after the stages of one GPU, that of several after those that measure there.
pages=()
for stage in "${stages[@]}"; do
  [[ $stage =~ ^(connections|processes|layouts|emulated)$ ]] && continue
  page=report
  [[ " ${multi_stages[*]} " == *" $stage "* ]] && page=multi_report
  [[ " ${pages[*]} " == *" $page "* ]] || pages+=("$page")
done

failed=()
for stage in "${stages[@]}"; do
  [[ $stage = report || $stage = multi_report ]] && continue
  printf '\n== %s\n' "$stage"
  begin=$SECONDS
  "stage_$stage" || failed+=("$stage")
  printf '%s took %s s\n' "$stage" $((SECONDS - begin))
done
for page in "${pages[@]}"; do
  printf '\n== %s\n' "$page"
  "stage_$page" || failed+=("$page")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all stages succeeded"
