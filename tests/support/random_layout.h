#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/errors.h"
#include "config/load.h"
#include "config/validate.h"
#include "plan/model_setup.h"
#include "plan/parallel_setup.h"
#include "plan/run_spec.h"
#include "support/random_words.h"

namespace braid {

/// Draws small runs over all dimensions of a layout: schedules, shards, buckets, ways of context
/// ranks, sequence parallelism, families of models, dtypes, what is recomputed and offloaded, when
/// weights are gathered. At most eight ranks; widths of 16; two to eight layers.
class RandomLayout : private RandomWords {
 public:
  explicit RandomLayout(uint64_t seed)
      : RandomWords(seed * 0x9E3779B97F4A7C15u + 1), of_gradients_(seed) {}

  /// Overrides of a configuration, in words; they may be impossible together.
  std::vector<std::string> draw() {
    words_ = {"model.width=16",  "model.heads=4",           "model.init_std=0.3",
              "eval.interval=0", "logging.run_folder=none", "optimizer.weight_decay=0.1"};
    draw_ranks();
    draw_pipeline();
    draw_model();
    draw_train();
    draw_shards();
    draw_memory();
    draw_mtp();
    draw_main_grads();
    return words_;
  }

 private:
  void draw_ranks() {
    do {
      tensor_ = any({1, 1, 2, 2, 4});
      pipeline_ = any({1, 1, 2, 2, 2, 3, 4});
      context_ = any({1, 1, 1, 2, 2, 4});
      data_ = any({1, 1, 2, 2, 3});
    } while (tensor_ * pipeline_ * context_ * data_ > (one_in(4) ? 8 : 6) ||
             tensor_ * pipeline_ * context_ * data_ == 1);
    set("parallel.ranks", tensor_ * pipeline_ * context_ * data_);
    set("parallel.tensor", tensor_);
    set("parallel.pipeline", pipeline_);
    set("parallel.context", context_);
    if (tensor_ > 1 && !one_in(3)) {
      set("parallel.sequence_parallel", true);
    }
    if (context_ > 1) {
      set("parallel.context_method", any({"ring", "ring", "all_gather", "a2a", "a2a+ring"}));
    }
  }

  void draw_pipeline() {
    stages_ = pipeline_;
    microbatches_ = 1 + below(3);
    if (pipeline_ == 1) {
      return;
    }
    const std::string schedule =
        any({"gpipe", "1f1b", "1f1b", "interleaved", "interleaved", "zb-h1", "zb-v", "dualpipe-v"});
    set("parallel.schedule", schedule);
    if (schedule == "interleaved" || schedule == "zb-v" || schedule == "dualpipe-v") {
      stages_ = 2 * pipeline_;
      set("parallel.virtual_stages", 2);
    }
    microbatches_ = schedule == "interleaved"  ? pipeline_ * (1 + below(2))
                    : schedule == "dualpipe-v" ? 2 * pipeline_ + below(2)
                                               : 1 + below(std::min<int64_t>(2 * pipeline_, 5));
  }

  void draw_model() {
    const bool is_gpt2 = one_in(4);
    set("model.family", is_gpt2 ? "gpt2" : "llama");
    set("model.layers", std::max<int64_t>(2, stages_) + (one_in(4) ? pipeline_ : 0));
    set("model.ffn", any({16, 24}));
    set("model.vocabulary", 20 + below(20));
    set("model.tied_embeddings", one_in(3));
    if (!is_gpt2) {
      set("model.kv_heads", any({1, 2, 4}));
      set("model.qkv_bias", one_in(3));
    }
  }

  void draw_train() {
    const int64_t microbatch = any({1, 1, 2});
    set("train.microbatch", microbatch);
    set("train.global_batch", microbatch * data_ * microbatches_);
    set("train.sequence", 2 * context_ * tensor_ * (1 + below(2)));
    set("train.dtype", any({"float32", "float32", "bfloat16"}));
    is_bf16_ = words_.back() == "train.dtype=bfloat16";
    if (one_in(5)) {
      set("optimizer.clip_norm", 0);
    }
  }

  void draw_shards() {
    const std::string shard =
        any({"none", "none", "optimizer", "gradients", "parameters", "parameters"});
    set("parallel.shard", shard);
    set("parallel.bucket", any({"layer", "layer", "virtual_stage", "bytes"}));
    if (words_.back() == "parallel.bucket=bytes") {
      set("parallel.bucket_bytes", 6000 + below(20000));
    }
    set("parallel.grad_reduce_dtype", any({"float32", "float32", "bfloat16"}));
    if (shard == "none") {
      return;
    }
    if (data_ * context_ % 2 == 0 && one_in(4)) {
      set("parallel.shard_replicas", 2);
      set("parallel.shard_over_replicas", one_in(2));
    }
    // When updated weights are gathered is the builder's choice, not a pass's.
    set("overlap.mode", any({"off", "auto", "manual"}));
    if (words_.back() == "overlap.mode=manual") {
      set("overlap.overlap_param_gather", true);
    }
  }

  void draw_main_grads() {
    if (is_bf16_ && of_gradients_() % 2 == 0) {
      set("optimizer.main_grads_dtype", "bfloat16");
      set("parallel.grad_reduce_dtype", "bfloat16");
    }
  }

  /// Positions of gpt2 cannot be looked up again.
  void draw_mtp() {
    if (one_in(4) && std::ranges::find(words_, "model.family=gpt2") == words_.end()) {
      set("model.mtp_depth", 1);
    }
  }

  void draw_memory() {
    if (one_in(2)) {
      set("memory.recompute", any({"norms", "attention", "compute", "full"}));
      if (one_in(3)) {
        set("memory.recompute_layers", 1 + below(2));
      }
    }
    if (one_in(3)) {
      set("memory.offload_layers", 1 + below(4));
      set("memory.offload_min_bytes", any({1, 200, 1000}));
      set("memory.offload_prefetch_layers", 1 + below(2));
    }
  }

  std::mt19937_64 of_gradients_;  // its own, so that all else is drawn as without it
  int64_t tensor_ = 1, pipeline_ = 1, context_ = 1, data_ = 1;
  int64_t stages_ = 1;
  bool is_bf16_ = false;
  int64_t microbatches_ = 1;
};

/// A run that can be planned, and what it was made of.
struct RandomRun {
  RunConfig config;  ///< validated and resolved
  ModelSpec model;
  std::string words;  ///< the overrides, for messages
};

/// The first possible run that this seed draws, the same on any machine.
inline RandomRun random_run(uint64_t seed) {
  RandomLayout layout(seed);
  for (;;) {
    const std::vector<std::string> words = layout.draw();
    try {
      RunConfig config = parse_config("", "random", words);
      validate(config);
      config = resolved(config);
      RunSpec run = resolve_run(config, 0);
      return {std::move(config), run.model, fmt::format("{}", fmt::join(words, " "))};
    } catch (const ConfigError&) {
      continue;  // such keys do not go together: draw again
    }
  }
}

}  // namespace braid
