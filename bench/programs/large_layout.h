#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "config/run_config.h"

namespace braid {

/// Of the command line [preset tensor context pipeline virtual_stages data global_batch]; by
/// default llama-405b 8 2 16 8 64 2048, which are 16,384 ranks. Sequences of 8192 in bf16.
inline RunConfig layout_of_arguments(int argc, char** argv) {
  std::array<int64_t, 6> sizes = {8, 2, 16, 8, 64, 2048};
  for (int i = 2; i < argc && i <= 7; ++i) {
    sizes[static_cast<size_t>(i - 2)] = std::atoll(argv[i]);
  }
  const auto [tensor, context, pipeline, virtual_stages, data, global_batch] = sizes;
  RunConfig config;
  config.model.preset = argc > 1 ? argv[1] : "llama-405b";
  config.train.sequence = 8192;
  config.train.global_batch = global_batch;
  config.train.dtype = "bfloat16";
  config.parallel.tensor = tensor;
  config.parallel.sequence_parallel = tensor > 1;
  config.parallel.context = context;
  config.parallel.pipeline = pipeline;
  config.parallel.virtual_stages = virtual_stages;
  config.parallel.schedule = virtual_stages > 1 ? "interleaved" : "1f1b";
  config.parallel.account_for_embedding = pipeline > 1;
  config.parallel.account_for_loss = pipeline > 1;
  config.parallel.data = data;
  config.parallel.ranks = tensor * context * pipeline * data;
  config.logging.run_folder = "unused";
  return config;
}

}  // namespace braid
