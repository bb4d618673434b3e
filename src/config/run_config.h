#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace braid {

// One struct per section of the run file, one member per key, under the same names. What a key
// means, its limits and its allowed values stand in one place, the table in config/fields.cpp;
// docs/configuration.md is made from that table.

/// A key that is not given (nullopt) keeps the value of the preset or, without a preset, of
/// src/model.
struct ModelConfig {
  std::string preset;
  std::optional<std::string> family;
  std::optional<int64_t> layers;
  std::optional<int64_t> width;
  std::optional<int64_t> heads;
  std::optional<int64_t> kv_heads;
  std::optional<int64_t> head_size;
  std::optional<int64_t> ffn;
  std::optional<int64_t> vocabulary;
  std::optional<int64_t> max_positions;
  std::optional<bool> tied_embeddings;
  std::optional<bool> qkv_bias;
  std::optional<double> rope_theta;
  std::optional<double> norm_epsilon;
  std::optional<double> init_std;

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

struct TrainConfig {
  int64_t sequence = 1024;
  int64_t microbatch = 1;
  int64_t global_batch = 8;
  int64_t steps = 1000;
  int64_t seed = 1234;
  std::string dtype = "float32";

  friend bool operator==(const TrainConfig&, const TrainConfig&) = default;
};

struct OptimizerConfig {
  double learning_rate = 3e-4;
  double min_learning_rate = 0.0;
  std::string schedule = "cosine";
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;
  std::string decay_shape = "linear";
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;

  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

struct ParallelConfig {
  int64_t ranks = 1;
  int64_t data = 0;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t context = 1;
  int64_t expert = 1;
  int64_t virtual_stages = 1;
  std::string schedule = "1f1b";
  bool sequence_parallel = false;
  std::string shard = "none";

  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

struct OverlapConfig {
  std::string mode = "auto";
  bool overlap_grad_reduce = false;
  std::vector<std::string> disable_passes;

  friend bool operator==(const OverlapConfig&, const OverlapConfig&) = default;
};

struct DataConfig {
  std::string train;
  std::string tokenizer = "bytes";
  std::string split = "969,30,1";
  bool append_eod = true;
  int64_t seed = 0;

  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

struct EvalConfig {
  int64_t interval = 100;
  int64_t batches = 10;

  friend bool operator==(const EvalConfig&, const EvalConfig&) = default;
};

struct CheckpointConfig {
  std::string folder;
  int64_t interval = 500;
  int64_t keep = 2;
  std::string resume = "auto";

  friend bool operator==(const CheckpointConfig&, const CheckpointConfig&) = default;
};

struct LoggingConfig {
  std::string run_folder;
  int64_t interval = 10;
  bool tensorboard = true;
  std::vector<int64_t> trace_steps = {2, 3};
  std::string progress = "auto";

  friend bool operator==(const LoggingConfig&, const LoggingConfig&) = default;
};

struct RuntimeConfig {
  std::string device = "auto";
  int64_t threads = 0;
  bool detect_nan = true;

  friend bool operator==(const RuntimeConfig&, const RuntimeConfig&) = default;
};

/// The whole configuration of `braid train`: what run.toml and `--set` say, with defaults for the
/// rest.
struct RunConfig {
  ModelConfig model;
  TrainConfig train;
  OptimizerConfig optimizer;
  ParallelConfig parallel;
  OverlapConfig overlap;
  DataConfig data;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  RuntimeConfig runtime;

  friend bool operator==(const RunConfig&, const RunConfig&) = default;
};

}  // namespace braid
