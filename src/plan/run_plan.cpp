#include "plan/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/errors.h"
#include "base/text.h"
#include "config/validate.h"
#include "memory/quick_plan.h"
#include "parallel/paired_jobs.h"
#include "parallel/step_program.h"
#include "parallel/verify_ranks.h"
#include "passes/context/cut_exchanges.h"
#include "passes/pipeline.h"
#include "plan/device_cost.h"
#include "plan/model_setup.h"
#include "plan/overlap_setup.h"
#include "plan/parallel_setup.h"
#include "plan/run_costs.h"
#include "plan/schedule_plan.h"
#include "sim/measured_model.h"

namespace braid {
namespace {

/// Passes that section [overlap] turns off, and those that the user names.
std::vector<std::string> disabled_passes(const OverlapConfig& overlap, const DebugOptions& debug) {
  std::vector<std::string> disabled = overlap_setup(overlap).disabled_passes;
  for (const auto* names : {&overlap.disable_passes, &debug.disabled_passes}) {
    disabled.insert(disabled.end(), names->begin(), names->end());
  }
  return disabled;
}

DType compute_dtype(const TrainConfig& train) {
  return train.dtype == "bfloat16" ? DType::kBF16 : DType::kF32;
}

TrainProgramOptions train_options(const RunConfig& config, int64_t microbatches) {
  return {.microbatch = microbatch_sequences(config),
          .sequence = config.train.sequence,
          .num_microbatches = microbatches,
          .dtype = compute_dtype(config.train),
          .optimizer = {.beta1 = config.optimizer.beta1,
                        .beta2 = config.optimizer.beta2,
                        .epsilon = config.optimizer.epsilon,
                        .weight_decay = config.optimizer.weight_decay,
                        .max_grad_norm = config.optimizer.clip_norm}};
}

/// Names the option, which the pass runner does not know.
std::string disabling_options(const OverlapConfig& overlap, const DebugOptions& debug) {
  const bool variable = !debug.disabled_passes.empty();
  const bool key = !overlap.disable_passes.empty();
  return variable && key ? "overlap.disable_passes or environment variable BRAID_DISABLE_PASSES"
         : variable      ? "environment variable BRAID_DISABLE_PASSES"
                         : "overlap.disable_passes";
}

/// Beyond these a program does not fit the memory or the patience of those who build it, and sizes
/// in bytes do not fit 64 bits.
constexpr double kMaxParameters = 0x1p44;
constexpr double kMaxTensorElems = 0x1p44;
constexpr int64_t kMaxPasses = 1 << 18;

void check_model_size(const ModelSpec& model) {
  const auto width = static_cast<double>(model.width);
  const double heads =
      static_cast<double>(model.heads + model.kv_heads) * static_cast<double>(model.head_size);
  const double layer = width * (2 * heads + 3 * static_cast<double>(model.ffn));
  const double parameters = static_cast<double>(model.layers) * layer +
                            2 * width * static_cast<double>(model.padded_vocabulary());
  if (parameters > kMaxParameters) {
    throw_config_error(
        "a model of {:.3g} parameters is too large to plan, the limit is {:.3g}; lower "
        "model.layers "
        "= {}, model.width = {}, model.ffn = {} or model.vocabulary = {}",
        parameters, kMaxParameters, model.layers, model.width, model.ffn, model.vocabulary);
  }
}

void check_batch_size(const TrainConfig& train, const ModelSpec& model) {
  const int64_t widest =
      std::max({qkv_width(model), 2 * model.ffn, model.width, model.padded_vocabulary()});
  const double elems = static_cast<double>(train.microbatch) * static_cast<double>(train.sequence) *
                       static_cast<double>(widest);
  if (elems > kMaxTensorElems) {
    throw_config_error(
        "train.microbatch = {} x train.sequence = {} makes a tensor of {:.3g} values, the limit is "
        "{:.3g}; lower either",
        train.microbatch, train.sequence, elems, kMaxTensorElems);
  }
}

/// Layers on a pipeline rank; embedding and head count as one each.
int64_t layers_of_rank(const RunPlan& plan, const ScheduleOptions& schedule, int pipeline_rank) {
  int64_t layers = 0;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    if (place_of(schedule, stage).rank == pipeline_rank) {
      const StageSlice& slice = plan.parallel.stages[static_cast<size_t>(stage)];
      layers += slice.num_layers + (slice.has_embedding ? 1 : 0) + (slice.has_head ? 1 : 0);
    }
  }
  return layers;
}

/// Passes of one microbatch over one layer, on the ranks to plan: each is a dozen tasks or two.
void check_program_size(const RunConfig& config, const RunPlan& plan,
                        const std::vector<int>& ranks) {
  const ScheduleOptions schedule =
      schedule_options(plan.mesh, plan.parallel, plan.num_microbatches);
  std::vector<int64_t> layers;
  for (int stage = 0; stage < plan.mesh.sizes().pipeline; ++stage) {
    layers.push_back(layers_of_rank(plan, schedule, stage));
  }
  double passes = 0;  // a product of three keys: not in 64 bits
  for (const int rank : ranks) {
    passes += static_cast<double>(plan.num_microbatches) *
              static_cast<double>(layers[static_cast<size_t>(plan.mesh.position(rank).pipeline)]);
  }
  if (passes > kMaxPasses) {
    throw_config_error(
        "train.global_batch = {} with train.microbatch = {} makes {} microbatches per step on each "
        "of {} ranks; with up to {} layers on a rank that is {:.0f} passes over a layer, more than "
        "the limit of {}; raise train.microbatch or lower train.global_batch or parallel.ranks",
        config.train.global_batch, config.train.microbatch, plan.num_microbatches, ranks.size(),
        *std::max_element(layers.begin(), layers.end()), passes, kMaxPasses);
  }
}

std::vector<int> planned_ranks(const PlanOptions& options, const Mesh& mesh) {
  check(options.ranks.empty() || !options.one_rank_per_stage, "two lists of ranks to plan");
  if (options.one_rank_per_stage) {
    return first_rank_of_stages(mesh);
  }
  std::vector<int> ranks = options.ranks;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(mesh.num_ranks()));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  return ranks;
}

/// "auto" is for those who know the memory (choose_recompute.h): until then, nothing.
Recompute recompute_policy(const MemoryConfig& memory) {
  return memory.recompute == "norms"       ? Recompute::kNorms
         : memory.recompute == "attention" ? Recompute::kAttention
         : memory.recompute == "full"      ? Recompute::kFull
                                           : Recompute::kNone;
}

/// What a run says to its passes beside sections [overlap] and [memory].
struct PassSetup {
  std::vector<JobPair> pairs = {};  ///< jobs of the training program that are woven
  FuseSwigluOptions fuse_swiglu = {};
  HalveForwardOptions halve_forward = {};
};

PipelineOptions pipeline_options(const OverlapConfig& overlap, const MemoryConfig& memory,
                                 const PassSetup& setup) {
  PipelineOptions options = overlap_setup(overlap).options;
  options.pair_forward_backward.pairs = setup.pairs;
  options.fuse_swiglu = setup.fuse_swiglu;
  options.halve_forward = setup.halve_forward;
  options.recompute = {.policy = recompute_policy(memory), .num_layers = memory.recompute_layers};
  options.fill_cooldown.recompute = options.recompute;
  options.offload = {.num_layers = memory.offload_layers,
                     .prefetch_layers = memory.offload_prefetch_layers,
                     .min_bytes = memory.offload_min_bytes};
  return options;
}

PipelineResult run_pipeline(Program program, const PipelineOptions& passes,
                            const PassContext& context, const RunOptions& options,
                            const std::string& option_names) {
  try {
    return run_passes(std::move(program), default_pipeline(passes), context, options);
  } catch (const ConfigError& error) {
    throw_config_error("{}: {}", option_names, error.what());
  }
}

const CostModel& schedule_costs(const OverlapConfig& overlap, const PlanOptions& options) {
  if (options.cost_model == nullptr && overlap.list_schedule) {
    throw_config_error(
        "overlap.list_schedule = true: orders tasks by their durations, but overlap.cost is empty; "
        "remove the key, or set overlap.cost to a cluster like \"h200x8\"");
  }
  if (options.cost_model == nullptr) {
    throw_config_error(
        "overlap.comm_engine = \"hidden\": compares durations of tasks, but overlap.cost is empty; "
        "set overlap.comm_engine = \"auto\", or set overlap.cost to a cluster like \"h200x8\"");
  }
  return *options.cost_model;
}

RankPlan plan_with_setup(std::vector<Program> programs, const OverlapConfig& overlap,
                         const MemoryConfig& memory, const PlanOptions& plan_options,
                         const PassSetup& setup) {
  const DebugOptions debug = read_debug_options();
  PassContext context = overlap_setup(overlap).context;
  context.cost_model = plan_options.cost_model;
  RankPlan plan;
  for (size_t i = 0; i < programs.size(); ++i) {
    RunOptions options{.disabled_passes = disabled_passes(overlap, debug),
                       .verify = debug.verify.value_or(plan_options.verify)};
    if (!debug.dump_program_folder.empty()) {
      options.dump_folder = fmt::format("{}/rank{}.{}", debug.dump_program_folder, programs[i].rank,
                                        programs[i].name);
    }
    PipelineResult result =
        run_pipeline(std::move(programs[i]), pipeline_options(overlap, memory, setup), context,
                     options, disabling_options(overlap, debug));
    plan.programs.push_back(std::move(result.program));
    if (i == kTrainProgram) {
      plan.passes = std::move(result.records);
    }
  }
  std::vector<const Program*> pointers;
  for (const Program& program : plan.programs) {
    pointers.push_back(&program);
  }
  plan.memory = plan_options.verify ? plan_memory(pointers) : plan_memory_quickly(pointers);
  return plan;
}

/// A line per pass that changed something or was skipped, and one for those that had nothing to do.
std::string describe_passes(std::span<const PassRecord> passes) {
  std::string text;
  std::vector<std::string_view> idle;
  for (const PassRecord& pass : passes) {
    if (!pass.skipped && !pass.report.changed) {
      idle.push_back(pass.name);
      continue;
    }
    text += fmt::format("pass     {:<22} {:>8.3f} ms  {}\n", pass.name,
                        static_cast<double>(pass.duration_ns) * 1e-6,
                        pass.skipped ? "skipped: " + pass.report.summary : pass.report.summary);
  }
  if (!idle.empty()) {
    text += fmt::format("pass     nothing to do for {}\n", fmt::join(idle, ", "));
  }
  return text;
}

}  // namespace

std::vector<int> first_rank_of_stages(const Mesh& mesh) {
  std::vector<int> ranks;
  for (int stage = 0; stage < mesh.sizes().pipeline; ++stage) {
    ranks.push_back(mesh.rank_at({.pipeline = stage}));
  }
  return ranks;
}

RankPlan plan_rank(std::vector<Program> programs, const OverlapConfig& overlap,
                   const MemoryConfig& memory, const CostModel* cost_model, bool verify) {
  PlanOptions options;
  options.cost_model = cost_model;
  options.verify = verify;
  return plan_with_setup(std::move(programs), overlap, memory, options, {});
}

RankPlan plan_rank(const RunConfig& config, const RunPlan& run, int rank,
                   const PlanOptions& options) {
  ParameterLayout layout = make_rank_layout(run.model, run.mesh, rank, run.parallel);
  TrainProgramOptions train = train_options(config, run.num_microbatches);
  train.parallel = run.parallel;
  train.dtype = options.dtype.value_or(train.dtype);
  train.update_weights = options.update_weights;
  std::vector<Program> programs;
  programs.push_back(build_train_program(run.model, layout, run.mesh, rank, train));
  programs.push_back(build_eval_program(run.model, layout, run.mesh, rank,
                                        {.microbatch = microbatch_sequences(config),
                                         .sequence = config.train.sequence,
                                         .dtype = train.dtype,
                                         .parallel = run.parallel}));
  if (config.parallel.context > 1) {
    std::ranges::transform(programs, programs.begin(), cut_exchanges);
  }
  const PassSetup setup{
      .pairs = paired_jobs(schedule_options(run.mesh, run.parallel, run.num_microbatches),
                           run.mesh.position(rank).pipeline),
      .fuse_swiglu = {.enabled = fuses_swiglu(config)},
      .halve_forward = {.rows = halves_forwards(config.overlap)
                                    ? config.train.microbatch * config.train.sequence
                                    : 0}};
  RankPlan plan =
      plan_with_setup(std::move(programs), config.overlap, config.memory, options, setup);
  plan.layout = std::move(layout);
  return plan;
}

std::unique_ptr<CostModel> overlap_cost_model(const RunConfig& config) {
  const std::string& name = config.overlap.cost;
  if (name.empty()) {
    return nullptr;
  }
  check_cost_is_named(config);
  try {
    return with_links_of_run(load_cost_model(name, static_cast<int>(config.parallel.ranks)),
                             config.links);
  } catch (const ConfigError& error) {
    throw_config_error("overlap.cost = {}: {}", quote(name, 60), error.what());
  } catch (const DataError& error) {  // a file that is not there, or no profile
    throw_data_error("overlap.cost = {}: {}", quote(name, 60), error.what());
  }
}

RunPlan plan_run(const RunConfig& config, int64_t tokenizer_vocabulary,
                 const PlanOptions& given_options) {
  PlanOptions options = given_options;
  const auto named_model = options.cost_model == nullptr ? overlap_cost_model(config) : nullptr;
  if (named_model != nullptr) {
    options.cost_model = named_model.get();
  }
  RunPlan plan;
  plan.model = resolve_model(config.model, config.train.sequence, tokenizer_vocabulary);
  check_model_size(plan.model);
  check_batch_size(config.train, plan.model);
  plan.layout = make_parameter_layout(model_parameters(plan.model));
  plan.mesh = Mesh(mesh_sizes(config, plan.model));
  plan.parallel = parallel_options(config, plan.model);
  plan.num_microbatches = num_microbatches(config);
  std::vector<int> ranks = planned_ranks(options, plan.mesh);
  const size_t num_wanted = ranks.size();
  plan.stand_ins = options.stand_ins;
  const bool is_ordered = is_scheduled(config.overlap) && options.schedule;
  if (is_ordered && !options.one_rank_per_stage && options.stand_ins.empty()) {
    ranks = ranks_to_schedule(plan.mesh, std::move(ranks));
  }
  check_program_size(config, plan, ranks);
  for (const int rank : ranks) {
    plan.ranks.push_back(plan_rank(config, plan, rank, options));
  }
  if (is_ordered) {
    schedule_kinds(plan, config, schedule_costs(config.overlap, options), options.verify);
    plan.ranks.erase(plan.ranks.begin() + static_cast<ptrdiff_t>(num_wanted), plan.ranks.end());
  }
  const bool all = options.ranks.empty() && !options.one_rank_per_stage;
  if (all && ranks.size() > 1 && read_debug_options().verify.value_or(true)) {
    verify_plan(plan);
  }
  return plan;
}

void verify_plan(const RunPlan& plan) {
  for (const size_t index : {kTrainProgram, kEvalProgram}) {
    RankPrograms ranks;
    for (const RankPlan& rank : plan.ranks) {
      check(rank.programs[index].rank == ranks.num_ranks(), "not all ranks are planned in order");
      ranks.program_of.push_back(static_cast<uint32_t>(ranks.programs.size()));
      ranks.programs.push_back(&rank.programs[index]);
    }
    verify_ranks_or_throw(
        ranks, fmt::format("the passes over program {}", plan.ranks.front().programs[index].name),
        {.one_order_of_collectives = true, .one_order_of_messages = true});
  }
}

std::string describe_run_plan(const RunPlan& plan, const RunConfig& config) {
  const RankPlan& rank = plan.ranks.front();
  const Program& train = rank.programs[kTrainProgram];
  std::string text = fmt::format("model    {}\n", describe_model(plan.model));
  if (const std::vector<std::string> keys = changed_keys_of_preset(config.model); !keys.empty()) {
    text +=
        fmt::format("preset   {} with another {}\n", config.model.preset, fmt::join(keys, ", "));
  }
  text += fmt::format(
      "step     {} ranks x {} microbatches x {} sequences x {} tokens = {} tokens\n",
      plan.mesh.num_ranks(), plan.num_microbatches, microbatch_sequences(config),
      config.train.sequence, format_count(config.train.global_batch * config.train.sequence));
  text += fmt::format(
      "program  {} tasks, {} buffers, {} streams, {} events {}\n", train.tasks.size(),
      train.buffers.size(), train.streams.size(), train.num_events,
      plan.mesh.sizes().pipeline > 1 ? fmt::format("on rank {}", train.rank) : "per rank");
  return text + describe_passes(rank.passes) + describe_plan(rank.memory);
}

}  // namespace braid
