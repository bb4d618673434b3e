#pragma once

#include "config/run_config.h"
#include "config/validate.h"

namespace braid {

/// A run of 4 layers whose layouts are few, and quick to simulate: 8 sequences of 1,024 tokens.
inline RunConfig small_search_run(int64_t ranks) {
  RunConfig config;
  config.model.layers = 4;
  config.model.width = 256;
  config.model.heads = 4;
  config.model.vocabulary = 512;
  config.train.sequence = 1024;
  config.train.global_batch = 8;
  config.train.dtype = "bfloat16";
  config.parallel.ranks = ranks;
  config.data.train = "unused";
  config.logging.run_folder = "unused";
  return config;
}

}  // namespace braid
