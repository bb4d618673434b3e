#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace braid {

// One struct per section of the run file, one member per key, under the same names. The table in
// config/fields.cpp defines the meaning, limits and allowed values of each key;
// docs/configuration.md is generated from it.

/// A key that is not given (nullopt) keeps the value of the preset or, without a preset, of
/// src/model.
struct ModelConfig {
  std::string preset;
  std::optional<std::string> family;
  std::optional<int64_t> layers;
  std::optional<std::string> pattern;
  std::optional<int64_t> width;
  std::optional<int64_t> heads;
  std::optional<int64_t> kv_heads;
  std::optional<int64_t> head_size;
  std::optional<int64_t> sliding_window;
  std::optional<int64_t> q_lora_rank;
  std::optional<int64_t> kv_lora_rank;
  std::optional<int64_t> qk_nope_head_dim;
  std::optional<int64_t> qk_rope_head_dim;
  std::optional<int64_t> v_head_dim;
  std::optional<int64_t> mamba_num_heads;
  std::optional<int64_t> mamba_head_dim;
  std::optional<int64_t> ssm_state_size;
  std::optional<int64_t> mamba_n_groups;
  std::optional<int64_t> conv_kernel;
  std::optional<int64_t> mamba_chunk_size;
  std::optional<double> mamba_dt_min;
  std::optional<double> mamba_dt_max;
  std::optional<int64_t> ffn;
  std::optional<int64_t> experts;
  std::optional<int64_t> experts_per_token;
  std::optional<int64_t> expert_ffn;
  std::optional<int64_t> shared_ffn;
  std::optional<bool> shared_gate;
  std::optional<std::string> router_scores;
  std::optional<bool> router_normalize;
  std::optional<double> router_scale;
  std::optional<bool> router_bias;
  std::optional<bool> router_logit_bias;
  std::optional<int64_t> router_groups;
  std::optional<int64_t> router_kept_groups;
  std::optional<int64_t> vocabulary;
  std::optional<int64_t> max_positions;
  std::optional<bool> tied_embeddings;
  std::optional<bool> qkv_bias;
  std::optional<int64_t> norm_offset;
  std::optional<bool> post_norms;
  std::optional<bool> scale_embedding;
  std::optional<int64_t> query_pre_attn_scalar;
  std::optional<int64_t> mtp_depth;
  std::optional<double> mtp_loss_weight;
  std::optional<double> rope_theta;
  std::optional<double> rope_local_base_freq;
  std::optional<double> partial_rotary_factor;
  std::optional<std::string> rope_type;
  std::optional<double> rope_factor;
  std::optional<int64_t> rope_original_max_position_embeddings;
  std::optional<double> rope_low_freq_factor;
  std::optional<double> rope_high_freq_factor;
  std::optional<double> rope_beta_fast;
  std::optional<double> rope_beta_slow;
  std::optional<bool> rope_truncate;
  std::optional<double> rope_mscale;
  std::optional<double> rope_mscale_all_dim;
  std::optional<double> rope_attention_factor;
  std::optional<std::string> rope_short_factor;
  std::optional<std::string> rope_long_factor;
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
  double z_loss = 0.0;
  std::string dtype = "float32";
  std::string fp8 = "off";
  std::vector<std::string> fp8_filter;
  bool fp8_head = false;
  bool fp8_experts = false;
  bool fp8_dispatch = false;
  std::string fp8_weight_blocks = "rows";
  std::string fp8_sums = "ideal";
  bool fp8_gather = true;
  bool fp8_param_gather = true;
  int64_t fp8_watch = 0;

  friend bool operator==(const TrainConfig&, const TrainConfig&) = default;
};

struct OptimizerConfig {
  std::string name = "adamw";
  double learning_rate = 3e-4;
  double min_learning_rate = 0.0;
  std::string schedule = "cosine";
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;
  std::string decay_shape = "linear";
  double decay_power = 2.0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double momentum = 0.9;
  bool nesterov = false;
  double muon_momentum = 0.95;
  bool muon_nesterov = true;
  int64_t muon_steps = 5;
  std::string muon_scale = "match_rms_adamw";
  std::string muon_dtype = "bfloat16";
  double weight_decay = 0.1;
  std::vector<std::string> no_decay;
  std::vector<std::string> rates;
  double clip_norm = 1.0;
  std::string moments_dtype = "float32";
  std::string main_grads_dtype = "float32";
  double ema = 0.0;

  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

struct ParallelConfig {
  int64_t ranks = 1;
  int64_t data = 0;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t context = 1;
  int64_t expert = 1;
  int64_t expert_tensor = 1;
  int64_t virtual_stages = 1;
  std::string schedule = "1f1b";
  bool sequence_parallel = false;
  int64_t microbatch_group_size = 0;
  std::string pipeline_layout;
  int64_t first_stage_layers = 0;
  int64_t last_stage_layers = 0;
  bool account_for_embedding = false;
  bool account_for_loss = false;
  std::string context_method = "ring";
  int64_t context_inner = 0;
  std::string mamba_context = "heads";
  std::string shard = "none";
  int64_t shard_replicas = 1;
  bool shard_over_replicas = false;
  std::string bucket = "layer";
  int64_t bucket_bytes = 100'000'000;
  std::string grad_reduce_dtype = "float32";

  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

struct MoeConfig {
  double balance_loss = 0.01;
  double sequence_balance_loss = 0.0;
  double z_loss = 0.0;
  double expert_capacity = 0.0;
  std::string drop = "probability";
  double capacity = 0.0;
  std::string on_overflow = "rerun";
  std::string exchange = "auto";
  int64_t exchange_hosts = 0;
  int64_t watch = 10;
  int64_t watch_counts = 500;
  bool force_balance = false;
  double force_skew = 0.0;
  std::string replay;
  std::string record;
  int64_t record_steps = 1;
  double bias_update_rate = 0.001;

  friend bool operator==(const MoeConfig&, const MoeConfig&) = default;
};

struct LoraConfig {
  int64_t rank = 0;
  double alpha = 16.0;
  bool dora = false;
  std::vector<std::string> targets;
  std::string base;

  friend bool operator==(const LoraConfig&, const LoraConfig&) = default;
};

struct PreferenceConfig {
  std::string loss = "none";
  double beta = 0.1;
  double label_smoothing = 0.0;
  std::string held_out;

  friend bool operator==(const PreferenceConfig&, const PreferenceConfig&) = default;
};

struct MemoryConfig {
  std::string recompute = "none";
  int64_t recompute_layers = 0;
  int64_t offload_layers = 0;
  int64_t offload_prefetch_layers = 1;
  int64_t offload_min_bytes = int64_t{1} << 20;
  std::string gather_budget;
  std::string grad_budget;

  friend bool operator==(const MemoryConfig&, const MemoryConfig&) = default;
};

struct OverlapConfig {
  std::string mode = "auto";
  std::string cost;
  bool may_change_rounding = false;
  bool list_schedule = false;
  std::string comm_engine = "auto";
  bool overlap_grad_reduce = false;
  int64_t overlap_grad_reduce_delayed_wgrad_layers = 0;
  bool overlap_param_gather = false;
  bool overlap_param_gather_with_optimizer_step = false;
  bool align_param_gather = false;
  int64_t param_gather_prefetch_units = 1;
  bool param_gather_fills_budget = true;
  int64_t param_gather_whole_units = 0;
  bool overlap_context_comm = false;
  bool overlap_moe_expert_parallel_comm = false;
  std::string pair_forward_backward = "none";
  bool overlap_p2p_comm = false;
  bool overlap_p2p_comm_warmup_flush = false;
  bool overlap_p2p_backward_on_comm_stream = false;
  int64_t overlap_p2p_wgrad_delayed_layer_number = 0;
  bool overlap_p2p_with_transformer_layer_wgrad = false;
  bool defer_embedding_wgrad_compute = false;
  int64_t wgrad_deferral_limit = 0;
  bool fill_cooldown = false;
  bool tp_comm_overlap = false;
  bool tp_comm_overlap_ag = true;
  bool tp_comm_overlap_rs = true;
  bool tp_comm_overlap_rs_dgrad = false;
  bool tp_comm_bulk_dgrad = true;
  bool tp_comm_bulk_wgrad = true;
  std::vector<std::string> tp_comm_overlap_sites;
  int64_t tp_comm_overlap_min_rows = 128;
  bool split_ops = false;
  std::vector<std::string> comm_sms;
  int64_t product_sm_margin = 0;
  std::vector<std::string> disable_passes;

  friend bool operator==(const OverlapConfig&, const OverlapConfig&) = default;
};

struct DataConfig {
  std::string train;
  std::vector<std::string> blend;
  std::vector<std::string> valid;
  std::string tokenizer = "bytes";
  std::string split = "969,30,1";
  bool append_eod = true;
  int64_t seed = 0;
  std::string packing = "concatenate";
  bool document_mask = false;
  int64_t document_length = 0;

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
  bool at_end = true;
  bool async = false;
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
  std::string format = "short";
  std::string prometheus;

  friend bool operator==(const LoggingConfig&, const LoggingConfig&) = default;
};

struct RuntimeConfig {
  std::string device = "auto";
  std::string processes = "auto";
  int64_t ranks_per_gpu = 1;
  int64_t threads = 0;
  bool repeatable = true;
  std::string fuse_swiglu = "auto";
  bool nccl_windows = false;
  std::string detect_nan = "loss";
  int64_t check_replicas = 100;
  int64_t rerun_steps = 500;
  double rerun_spike = 10;
  int64_t steps_in_flight = 2;
  int64_t timeout_s = 60;

  friend bool operator==(const RuntimeConfig&, const RuntimeConfig&) = default;
};

/// Emulated links between CPU ranks, by kind of group; zeros: none.
struct LinksConfig {
  double data_latency_us = 0;
  double data_gb_per_s = 0;
  double tensor_latency_us = 0;
  double tensor_gb_per_s = 0;
  double pipeline_latency_us = 0;
  double pipeline_gb_per_s = 0;
  double context_latency_us = 0;
  double context_gb_per_s = 0;

  friend bool operator==(const LinksConfig&, const LinksConfig&) = default;
};

/// The whole configuration of `braid train`: run.toml and `--set`, with defaults for the rest.
struct RunConfig {
  ModelConfig model;
  TrainConfig train;
  OptimizerConfig optimizer;
  ParallelConfig parallel;
  MoeConfig moe;
  LoraConfig lora;
  PreferenceConfig preference;
  MemoryConfig memory;
  OverlapConfig overlap;
  DataConfig data;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  RuntimeConfig runtime;
  LinksConfig links;

  friend bool operator==(const RunConfig&, const RunConfig&) = default;
};

}  // namespace braid
