#!/usr/bin/env bash
# Puts what check.sh needs on a machine without a compiler into one archive: programs, and the shared libraries that such a machine
# may lack. The C and C++ libraries are expected there, CUDA's come with PyTorch.
#
#   cmake -S . -B build/portable -G Ninja -DCMAKE_BUILD_TYPE=Release -DBRAID_NATIVE=OFF
#   cmake --build build/portable --target braid_gpu_check
#   bench/gpu/pack.sh build/portable braid_gpu.tar.xz
#   there: tar xf braid_gpu.tar.xz -C FOLDER && bench/gpu/check.sh --bin FOLDER
set -euo pipefail

[ $# -eq 2 ] || { echo "usage: bench/gpu/pack.sh BUILD_FOLDER ARCHIVE.tar.xz" >&2; exit 2; }
build=$1 archive=$2
programs=(braid tests/braid_cuda_tests tests/braid_cuda_runtime_tests bench/braid_bench_floor bench/braid_bench_gemm_attention
          bench/braid_bench_memory_bound bench/braid_bench_fp8 bench/braid_bench_comm bench/braid_bench_row_exchange)
expected_there='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libcublas.*|libcudnn.*|libcupti|libnccl)\.so'

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for program in "${programs[@]}"; do
  [ -f "$build/$program" ] || { echo "pack.sh: $build/$program is missing: build target braid_gpu_check" >&2; exit 1; }
  strip -o "$folder/$(basename "$program")" "$build/$program"
  ldd "$build/$program" | awk -v skip="$expected_there" '$1 !~ skip && $3 ~ /^\// {print $3}' | while read -r library; do
    cp -Lu "$library" "$folder/"
  done
done
tar -C "$folder" -cf - . | xz -T0 -3 > "$archive.tmp"
mv "$archive.tmp" "$archive"
(cd "$folder" && echo *)
du -h "$archive"
