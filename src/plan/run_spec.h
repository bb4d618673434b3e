#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/dtype.h"
#include "comm/links.h"
#include "config/choices.h"
#include "config/run_config.h"
#include "model/forward.h"
#include "model/model_spec.h"
#include "ops/preference.h"
#include "ops/quantize_products.h"
#include "parallel/mesh.h"
#include "parallel/optimizer_options.h"
#include "parallel/parallel_options.h"
#include "parallel/schedule.h"
#include "plan/overlap_setup.h"
#include "sim/cost_model.h"

namespace braid {

/// Learning rate schedule of a run, see train/learning_rate.h.
struct LearningRateSpec {
  RateSchedule schedule = RateSchedule::kCosine;
  DecayShape decay_shape = DecayShape::kLinear;
  double highest = 0;
  double lowest = 0;
  double power = 1;  ///< of RateSchedule::kPolynomial
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;
  int64_t num_steps = 0;  ///< of the run
};

/// A run with every decision of its configuration made: the model, the mesh, types in place of
/// names. `resolve_run` creates it once; everything that plans, simulates or runs reads it. To get
/// another run, change a RunConfig and resolve it again.
struct RunSpec {
  /// The source configuration, validated and resolved, to be printed, saved or changed. Its numbers
  /// may be read; its names are decoded below.
  RunConfig config;
  int64_t tokenizer_vocabulary = 0;  ///< as in `resolve_model`

  ModelSpec model = {};
  Mesh mesh{MeshSizes{}};
  ParallelOptions parallel = {};
  DType dtype = DType::kF32;          ///< of compute
  std::optional<Fp8Recipe> fp8 = {};  ///< of products in layers; nothing: they are in `dtype`
  RouterLosses router_losses = {};
  /// The loss of pairs in place of that of tokens, if there is one.
  std::optional<PreferenceLossAttributes> preference = {};
  AttentionDocuments documents = {};  ///< of each sequence; none: a sequence is one document
  bool watch_experts = false;         ///< counts the rows of each expert
  bool watch_room = false;            ///< counts the rows of experts that come to a rank
  RoutingUse routing = RoutingUse::kScores;
  bool reruns_overflow = false;  ///< steps without room for all rows run again with more
  OptimizerOptions optimizer = {};
  int64_t microbatch_sequences = 1;  ///< of one microbatch as it runs
  int64_t num_microbatches = 1;      ///< per rank and step

  OverlapSetup passes = {};   ///< sections [overlap] and [memory] for the passes
  bool is_scheduled = false;  ///< as `is_scheduled` of schedule_plan.h
  /// The cost model that overlap.cost names, with a device for every rank; null if the key is
  /// empty.
  std::shared_ptr<const CostModel> cost_model = {};

  LinkOptions links = {};  ///< emulated between CPU ranks
  LearningRateSpec learning_rate = {};
  NanCheck detect_nan = NanCheck::kLoss;

  /// Whether log-probabilities of pairs are means over the tokens of an answer, not sums.
  bool averages_answers() const {
    return preference && preference->preference_kind() == PreferenceKind::kIpo;
  }
  /// Tokens of one step over all ranks.
  int64_t tokens_per_step() const { return config.train.global_batch * config.train.sequence; }
  ScheduleOptions schedule() const;
};

/// Resolves a run without building a program. Requires: `config` is validated and resolved. Throws
/// ConfigError for a model, layout or pipeline that is impossible or too large to plan, and for an
/// unknown name in overlap.cost; DataError for a profile that cannot be read.
RunSpec resolve_run(const RunConfig& config, int64_t tokenizer_vocabulary);

/// Resolves `config`, reusing the costs of `run` if overlap.cost, the number of ranks and the links
/// are the same. So a search does not read a profile for each of its trials.
RunSpec resolve_again(const RunSpec& run, const RunConfig& config);

}  // namespace braid
