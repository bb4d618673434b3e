#pragma once

#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "backends/cpu/kernel.h"
#include "base/dtype.h"
#include "base/worker_pool.h"
#include "ir/op_spec.h"

namespace braid {

/// A spec, its kernel and 64-byte aligned operands of random floats in [0.1, 1): neither denormals
/// nor zeros, which some processors are slower or faster at. Integer operands are 0.
class BenchKernel {
 public:
  BenchKernel(OpSpec spec, int num_workers)
      : spec_(std::move(spec)),
        kernel_(make_cpu_kernel(spec_, num_workers)),
        workers_(num_workers),
        scratch_(allocate(kernel_.scratch_bytes)) {
    std::mt19937 random(1);
    for (const OperandSpec& operand : spec_.operands) {
      memory_.push_back(allocate(operand_bytes(operand)));
      operands_.push_back(memory_.back().get());
      fill(operand, memory_.back().get(), random);
    }
  }

  void run() {
    kernel_.run({.operands = operands_,
                 .scratch = {scratch_.get(), kernel_.scratch_bytes},
                 .workers = workers_});
  }

  /// Bytes of all operands that cross memory at least once: read, written, or both.
  double min_bytes() const {
    double bytes = 0;
    for (const OperandSpec& operand : spec_.operands) {
      const int crossings = (reads(operand.access) ? 1 : 0) + (writes(operand.access) ? 1 : 0);
      bytes += crossings * static_cast<double>(operand_bytes(operand));
    }
    return bytes;
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* memory) const { operator delete[](memory, kAlignment); }
  };
  using Memory = std::unique_ptr<std::byte[], Free>;

  static Memory allocate(size_t bytes) {
    return Memory(static_cast<std::byte*>(operator new[](bytes, kAlignment)));
  }
  static size_t operand_bytes(const OperandSpec& operand) {
    return static_cast<size_t>(operand.shape.num_elems()) * dtype_bytes(operand.dtype);
  }
  static void fill(const OperandSpec& operand, std::byte* to, std::mt19937& random) {
    std::uniform_real_distribution<float> uniform(0.1f, 1.0f);
    std::memset(to, 0, operand_bytes(operand));
    for (int64_t i = 0; i < operand.shape.num_elems(); ++i) {
      if (operand.dtype == DType::kF32) {
        reinterpret_cast<float*>(to)[i] = uniform(random);
      } else if (operand.dtype == DType::kBF16) {
        reinterpret_cast<BFloat16*>(to)[i] = uniform(random);
      }
    }
  }

  OpSpec spec_;
  CpuKernel kernel_;
  WorkerPool workers_;
  Memory scratch_;
  std::vector<Memory> memory_;
  std::vector<std::byte*> operands_;
};

/// Runs the kernel; counters: bytes/s that cross memory at least, flop/s if `flops` are given.
inline void measure(benchmark::State& state, OpSpec spec, int num_workers, double flops = 0) {
  BenchKernel kernel(std::move(spec), num_workers);
  for (auto _ : state) {
    kernel.run();
  }
  using benchmark::Counter;
  const auto per_second = [&](double amount) {
    return Counter(amount, Counter::kIsIterationInvariantRate, Counter::OneK::kIs1000);
  };
  if (flops > 0) {
    state.counters["flop/s"] = per_second(flops);
  } else {
    state.counters["bytes/s"] = per_second(kernel.min_bytes());
  }
}

}  // namespace braid
