#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/op.h"
#include "passes/analysis/mixed_hash.h"
#include "runtime/engine.h"
#include "support/cpu_executors.h"

namespace braid {

/// The bits that FP8 products read: a hash of both factors and their scales for each product that a
/// CPU rank runs. Programs that gather something else, in another order, have the same hashes if
/// their products read the same copies.
class ProductFactors {
 public:
  explicit ProductFactors(int64_t num_ranks) : by_rank_(static_cast<size_t>(num_ranks)) {}

  /// Of an engine whose products are noted here; this object must outlive it.
  EngineOptions options() {
    EngineOptions options;
    options.make_executor = [this](std::vector<Program> programs, MemoryPlan plan,
                                   const RankOptions& its, int rank) -> std::unique_ptr<Executor> {
      return std::make_unique<CpuExecutor>(
          std::move(programs), std::move(plan),
          CpuExecutorOptions{.transport = its.transport,
                             .num_workers = its.num_workers,
                             .make_kernel = noting_kernels(static_cast<size_t>(rank)),
                             .stuck_timeout_ns = its.stuck_timeout_ns});
    };
    return options;
  }

  const std::vector<std::multiset<uint64_t>>& by_rank() const { return by_rank_; }

 private:
  static constexpr size_t kFactorOperands = 4;  // two factors, each before its scales

  CpuKernelFactory noting_kernels(size_t rank) {
    return [this, rank](const OpSpec& spec, int num_workers) {
      CpuKernel kernel = make_cpu_kernel(spec, num_workers);
      if (spec.op.starts_with("scaled_linear")) {
        kernel.run = [this, rank, spec, run = std::move(kernel.run)](const KernelArgs& args) {
          note(rank, hash_of(spec, args));
          run(args);
        };
      }
      return kernel;
    };
  }

  static uint64_t hash_of(const OpSpec& spec, const KernelArgs& args) {
    uint64_t hash = std::hash<std::string>()(spec.op);
    for (size_t i = 0; i < kFactorOperands; ++i) {
      const OperandSpec& operand = spec.operands[i];
      const std::string_view bytes(reinterpret_cast<const char*>(args.operands[i]),
                                   static_cast<size_t>(operand.shape.num_elems()) *
                                       static_cast<size_t>(dtype_bytes(operand.dtype)));
      hash = mixed_hash(hash, std::hash<std::string_view>()(bytes));
    }
    return hash;
  }

  void note(size_t rank, uint64_t hash) {
    const std::lock_guard lock(mutex_);
    by_rank_[rank].insert(hash);
  }

  std::mutex mutex_;
  std::vector<std::multiset<uint64_t>> by_rank_;
};

}  // namespace braid
