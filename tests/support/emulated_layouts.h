#pragma once

#include <string>

#include "config/run_config.h"
#include "config/validate.h"

namespace braid {

/// A run that is planned and simulated, and never started: it has no data.
inline RunConfig small_planned_run() {
  RunConfig config;
  config.model.layers = 4;
  config.model.width = 64;
  config.model.heads = 4;
  config.model.vocabulary = 256;
  config.train.sequence = 64;
  config.train.global_batch = 16;
  config.data.train = "unused";
  config.logging.run_folder = "unused";
  return config;
}

/// `config` over so many ranks that communicate as `name` says, validated and resolved.
inline RunConfig emulated_layout(RunConfig config, const std::string& name, int64_t ranks) {
  ParallelConfig& parallel = config.parallel;
  parallel.ranks = ranks;
  if (name == "tensor_pipeline") {
    parallel.tensor = 2;
    parallel.sequence_parallel = true;
    parallel.pipeline = 2;
  } else if (name == "tensor_copies") {
    parallel.tensor = ranks;
    parallel.sequence_parallel = true;
    config.overlap.comm_engine = "copy";
  } else if (name == "parameters") {
    parallel.shard = "parameters";
  } else if (name.starts_with("experts")) {
    config.moe.exchange = name == "experts"             ? "direct"
                          : name == "experts_in_blocks" ? "blocks"
                                                        : "hosts";
    config.moe.exchange_hosts = name == "experts_over_hosts" ? 2 : 0;
    config.model.experts = 2 * ranks;
    config.model.experts_per_token = 2;
    config.model.expert_ffn = config.model.width;
    parallel.expert = ranks;
    parallel.shard = "optimizer";
  } else {  // "ring", "a2a"
    parallel.context = ranks;
    parallel.context_method = name;
    parallel.shard = "optimizer";
  }
  validate(config);
  return resolved(config);
}

}  // namespace braid
