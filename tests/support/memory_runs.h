#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "plan/run_plan.h"
#include "runtime/memory_check.h"

namespace braid {

inline constexpr int64_t kMemoryVocabulary = 257;

/// A run in which every way to save memory saves some: most of its memory is activations.
/// `settings`, such as "train.microbatch=1", override those of the run.
inline RunConfig memory_config(const std::vector<std::string>& settings) {
  std::vector<std::string> overrides = {"model.layers=4",       "model.width=128",
                                        "model.heads=4",        "train.sequence=2048",
                                        "train.microbatch=4",   "train.global_batch=16",
                                        "train.dtype=bfloat16", "logging.run_folder=unused"};
  overrides.insert(overrides.end(), settings.begin(), settings.end());
  const RunConfig config = parse_config("", "the test", overrides);
  validate(config);
  return resolved(config);
}

inline RunMemory gpu_of(int64_t free_bytes) {
  return {.gpu = GpuMemory{.name = "the GPU of the test", .free_bytes = free_bytes},
          .host_bytes = std::nullopt};
}

inline RunMemory host_of(int64_t free_bytes) {
  return {.gpu = std::nullopt, .host_bytes = free_bytes, .threads_per_rank = 2};
}

using MakeMemory = RunMemory (*)(int64_t free_bytes);

inline RunPlan memory_plan_of(const RunConfig& config) {
  return plan_run(resolve_run(config, kMemoryVocabulary));
}

/// Of the GPU that needs most, or of the host.
inline int64_t needed_bytes(const RunConfig& config, MakeMemory make_memory = gpu_of) {
  return memory_uses(memory_plan_of(config), make_memory(0)).front().needs.bytes();
}

}  // namespace braid
