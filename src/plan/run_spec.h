#pragma once

#include <cstdint>
#include <memory>

#include "base/dtype.h"
#include "comm/links.h"
#include "config/choices.h"
#include "config/run_config.h"
#include "model/model_spec.h"
#include "parallel/mesh.h"
#include "parallel/parallel_options.h"
#include "parallel/schedule.h"
#include "plan/overlap_setup.h"
#include "sim/cost_model.h"

namespace braid {

/// How the learning rate of a run changes, see train/learning_rate.h.
struct LearningRateSpec {
  RateSchedule schedule = RateSchedule::kCosine;
  DecayShape decay_shape = DecayShape::kLinear;
  double highest = 0;
  double lowest = 0;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;
  int64_t num_steps = 0;  ///< of the run
};

/// A run with everything decided that its configuration says: the model, the mesh, types in place
/// of names. `resolve_run` makes it once; all that plans, simulates or runs reads it. Who wants
/// another run changes a RunConfig and resolves that.
struct RunSpec {
  /// What it was made of, validated and resolved: to be printed, saved, or changed. Its numbers may
  /// be read; its names are decoded below.
  RunConfig config;
  int64_t tokenizer_vocabulary = 0;  ///< as in `resolve_model`

  ModelSpec model = {};
  Mesh mesh{MeshSizes{}};
  ParallelOptions parallel = {};
  DType dtype = DType::kF32;         ///< of compute
  int64_t microbatch_sequences = 1;  ///< of one microbatch as it runs
  int64_t num_microbatches = 1;      ///< per rank and step

  OverlapSetup passes = {};   ///< what sections [overlap] and [memory] say to the passes
  bool is_scheduled = false;  ///< as `is_scheduled` of schedule_plan.h
  /// What overlap.cost names, with a device for every rank; null if it is empty.
  std::shared_ptr<const CostModel> cost_model = {};

  LinkOptions links = {};  ///< that are emulated between CPU ranks
  LearningRateSpec learning_rate = {};
  NanCheck detect_nan = NanCheck::kLoss;

  /// Of a step, over all ranks.
  int64_t tokens_per_step() const { return config.train.global_batch * config.train.sequence; }
  ScheduleOptions schedule() const;
};

/// `config` must be validated and resolved. Builds no program. Throws ConfigError for a model,
/// layout or pipeline that does not exist or is too large to plan and for costs that overlap.cost
/// does not name, and DataError for a profile that cannot be read.
RunSpec resolve_run(const RunConfig& config, int64_t tokenizer_vocabulary);

/// `run` with another configuration. The costs are shared where overlap.cost, the number of ranks
/// and the links are the same: a search does not read a profile for each of its trials.
RunSpec resolve_again(const RunSpec& run, const RunConfig& config);

}  // namespace braid
