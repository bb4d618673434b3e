#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backends/run_ranks.h"
#include "support/cpu_executors.h"

namespace braid {

struct CpuRanksOptions {
  std::vector<TaskHook> hooks = {};  ///< by rank; missing ones do nothing
  int64_t timeout_ns = 60'000'000'000;
  int64_t stuck_timeout_ns = 2'000'000'000;
  LinkOptions links = {};
};

/// The ranks of one run, each with its executor.
class CpuRanks {
 public:
  using Build = std::function<Program(int rank)>;

  CpuRanks(int num_ranks, const Build& build, const CpuRanksOptions& options = {})
      : transports_(make_in_process_transports(
            {.num_ranks = num_ranks, .timeout_ns = options.timeout_ns, .links = options.links})) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto index = static_cast<size_t>(rank);
      CpuExecutorOptions of_rank{.transport = transports_[index].get(),
                                 .stuck_timeout_ns = options.stuck_timeout_ns};
      if (index < options.hooks.size() && options.hooks[index]) {
        of_rank.make_kernel = hooked_kernels(options.hooks[index]);
      }
      std::vector<Program> programs{build(rank)};
      MemoryPlan plan = plan_of(programs);
      executors_.push_back(
          std::make_unique<CpuExecutor>(std::move(programs), std::move(plan), of_rank));
    }
  }

  CpuExecutor& operator[](size_t rank) { return *executors_[rank]; }
  Transport& transport(size_t rank) { return *transports_[rank]; }
  void destroy(size_t rank) { executors_[rank].reset(); }
  void run() {
    std::vector<Executor*> ranks;
    for (const auto& executor : executors_) {
      ranks.push_back(executor.get());
    }
    run_ranks(ranks, 0);
  }

 private:
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<CpuExecutor>> executors_;
};

}  // namespace braid
