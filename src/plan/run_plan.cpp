#include "plan/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/errors.h"
#include "base/parallel_for.h"
#include "base/text.h"
#include "memory/known_plans.h"
#include "memory/quick_plan.h"
#include "ops/op.h"
#include "parallel/paired_jobs.h"
#include "parallel/verify_ranks.h"
#include "passes/pipeline.h"
#include "passes/pipeline/pair_forward_backward.h"
#include "passes/tensor/ring_exchange.h"
#include "plan/build_programs.h"
#include "plan/expert_gathers.h"
#include "plan/fp8_sites.h"
#include "plan/model_setup.h"
#include "plan/overlap_setup.h"
#include "plan/pass_records.h"
#include "plan/rank_programs.h"
#include "plan/schedule_plan.h"
#include "plan/unit_budgets.h"
#include "plan/unit_memory.h"

namespace braid {
namespace {

/// Programs and the settings of their passes.
struct PassInput {
  std::vector<Program> programs;
  OverlapSetup setup;
  std::vector<std::string> disabled_by_key = {};  ///< overlap.disable_passes
  const CostModel* cost_model = nullptr;
  bool verify = true;
  bool quick_memory = false;
  KnownPlans* known_plans = nullptr;
};

/// Names the option that disables passes; the pass runner does not know it.
std::string disabling_options(const PassInput& input, const DebugOptions& debug) {
  const bool variable = !debug.disabled_passes.empty();
  const bool key = !input.disabled_by_key.empty();
  return variable && key ? "overlap.disable_passes or environment variable BRAID_DISABLE_PASSES"
         : variable      ? "environment variable BRAID_DISABLE_PASSES"
                         : "overlap.disable_passes";
}

/// Limits on the size of programs: larger ones would take too long to build. A pass takes 0.7 ms of
/// a simulation of 131,072 passes, and 8 kB (bench/simulator.md).
constexpr int64_t kMaxPasses = 1 << 18;
constexpr int64_t kMaxSimulatedPasses = 1 << 20;

/// Layers on a pipeline rank; embedding and head count as one each.
int64_t layers_of_rank(const RunSpec& run, const ScheduleOptions& schedule, int pipeline_rank) {
  int64_t layers = 0;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    if (place_of(schedule, stage).rank == pipeline_rank) {
      const StageSlice& slice = run.parallel.stages[static_cast<size_t>(stage)];
      layers += slice.num_layers + (slice.has_embedding ? 1 : 0) + (slice.has_head ? 1 : 0);
    }
  }
  return layers;
}

/// Limits the passes of one microbatch over one layer, summed over the ranks to plan. Each pass is
/// one or two dozen tasks.
void check_program_size(const RunSpec& run, const std::vector<int>& ranks, int64_t limit) {
  const ScheduleOptions schedule = run.schedule();
  std::vector<int64_t> layers;
  for (int stage = 0; stage < run.mesh.sizes().pipeline; ++stage) {
    layers.push_back(layers_of_rank(run, schedule, stage));
  }
  double passes = 0;  // a product of three keys: not in 64 bits
  for (const int rank : ranks) {
    passes += static_cast<double>(run.num_microbatches) *
              static_cast<double>(layers[static_cast<size_t>(run.mesh.position(rank).pipeline)]);
  }
  if (passes > static_cast<double>(limit)) {
    const TrainConfig& train = run.config.train;
    throw_config_error(
        "train.global_batch = {} with train.microbatch = {} makes {} microbatches per step on each "
        "of {} ranks; with up to {} layers on a rank that is {:.0f} passes over a layer, more than "
        "the limit of {}; raise train.microbatch or lower train.global_batch or parallel.ranks",
        train.global_batch, train.microbatch, run.num_microbatches, ranks.size(),
        *std::max_element(layers.begin(), layers.end()), passes, limit);
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

void add_missing(const std::vector<int>& wanted, std::vector<int>& ranks) {
  for (const int rank : wanted) {
    if (std::ranges::find(ranks, rank) == ranks.end()) {
      ranks.push_back(rank);
    }
  }
}

PipelineResult run_pipeline(Program program, std::span<const Pass> passes,
                            const PassContext& context, const RunOptions& options,
                            const std::string& option_names) {
  try {
    return run_passes(std::move(program), passes, context, options);
  } catch (const ConfigError& error) {
    throw_config_error("{}: {}", option_names, error.what());
  }
}

MemoryPlan plan_of(std::span<const Program* const> programs, KnownPlans* known) {
  return known == nullptr ? plan_memory(programs) : plan_memory_with(programs, *known);
}

RankPlan plan_with_passes(PassInput input) {
  const DebugOptions debug = read_debug_options();
  PassContext context = input.setup.context;
  context.cost_model = input.cost_model;
  const std::vector<Pass> passes = default_pipeline(input.setup.options);
  RunOptions options{.disabled_passes = disabled_passes(input.setup, input.disabled_by_key, debug),
                     .verify = debug.verify.value_or(input.verify)};
  RankPlan plan;
  for (size_t i = 0; i < input.programs.size(); ++i) {
    Program& program = input.programs[i];
    options.dump_folder = dump_folder_of(debug.dump_program_folder, program);
    PipelineResult result =
        run_pipeline(std::move(program), passes, context, options, disabling_options(input, debug));
    plan.programs.push_back(std::move(result.program));
    if (i == kTrainProgram) {
      plan.passes = std::move(result.records);
    }
  }
  std::vector<const Program*> pointers;
  for (const Program& program : plan.programs) {
    pointers.push_back(&program);
  }
  plan.memory =
      input.quick_memory ? plan_memory_quickly(pointers) : plan_of(pointers, input.known_plans);
  return plan;
}

bool is_first_of_stage(const Mesh& mesh, int rank) {
  return rank == mesh.rank_at({.pipeline = mesh.position(rank).pipeline});
}

/// A page shows few of many stages, and plans again what it needs of the others. Budgets are
/// checked in the programs of all stages.
bool keeps_buffers(const RunSpec& run, int rank) {
  constexpr int kMostStages = 8;
  const MemoryConfig& memory = run.config.memory;
  const bool has_budget = !memory.gather_budget.empty() || !memory.grad_budget.empty();
  return is_first_of_stage(run.mesh, rank) &&
         (has_budget || run.mesh.position(rank).pipeline < kMostStages);
}

bool is_verified(const PlanOptions& options, const Mesh& mesh, int rank) {
  if (!options.verify || !options.for_simulation) {
    return options.verify;
  }
  const int stage = mesh.position(rank).pipeline;
  const int last = mesh.sizes().pipeline - 1;
  return is_first_of_stage(mesh, rank) && (stage == 0 || stage == (last + 1) / 2 || stage == last);
}

/// Leaves tasks only what calls of ranks are compared by: which elements tasks that communicate
/// access. Tasks with the same ranges, of which there are few, share them; all others get the same.
void keep_ranges_of_communication(Program& program) {
  size_t most_operands = 0;
  for (const OpSpec& spec : program.specs.all()) {
    most_operands = std::max(most_operands, spec.operands.size());
  }
  std::vector<BufferRange> kept(most_operands);
  std::map<std::vector<std::pair<int64_t, int64_t>>, uint32_t> known;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (Task& task : program.tasks) {
    if (communication_of(program.spec(task)) == nullptr) {
      task.operands_begin = 0;
      continue;
    }
    ranges.clear();
    for (const BufferRange& range : program.operands_of(task)) {
      ranges.emplace_back(range.begin, range.end);
    }
    const auto [entry, is_new] = known.try_emplace(ranges, static_cast<uint32_t>(kept.size()));
    task.operands_begin = entry->second;
    for (size_t i = 0; is_new && i < ranges.size(); ++i) {
      kept.push_back({.buffer = {}, .begin = ranges[i].first, .end = ranges[i].second});
    }
  }
  kept.shrink_to_fit();
  program.operands = std::move(kept);
}

/// `list = {}` would keep its memory.
template <class T>
void release(std::vector<T>& list) {
  std::vector<T>().swap(list);
}

void release_buffers(RankPlan& plan) {
  for (Program& program : plan.programs) {
    keep_ranges_of_communication(program);
    release(program.buffers);
  }
  for (StepPlan& step : plan.memory.programs) {
    release(step.offset_bytes);
  }
  plan.no_buffers = true;
}

/// Passes grow programs; plans of many ranks are kept.
void release_spare_room(Program& program) {
  program.buffers.shrink_to_fit();
  program.tasks.shrink_to_fit();
  program.operands.shrink_to_fit();
  program.waits.shrink_to_fit();
}

RankPlan plan_rank(const RunSpec& run, int rank, const PlanOptions& options,
                   KnownPlans& known_plans) {
  ParameterLayout layout = make_rank_layout(run.model, run.mesh, rank, run.parallel);
  PassInput input{
      .programs = build_programs(
          run, layout, rank, {.dtype = options.dtype, .update_weights = options.update_weights}),
      .setup = run.passes,
      .disabled_by_key = run.config.overlap.disable_passes,
      .cost_model = options.cost_model,
      .verify = is_verified(options, run.mesh, rank),
      .quick_memory = !options.verify,
      .known_plans = &known_plans};
  std::vector<JobPair> pairs = paired_jobs(run.schedule(), run.mesh.position(rank).pipeline);
  input.setup.options.of<RingExchangeOptions>().pairs = pairs;
  input.setup.options.of<PairForwardBackwardOptions>().pairs = std::move(pairs);
  RankPlan plan = plan_with_passes(std::move(input));
  plan.layout = std::move(layout);
  std::ranges::for_each(plan.programs, release_spare_room);
  return plan;
}

/// The passes that keys of [overlap] ask for.
std::set<std::string_view> asked_for(const OverlapConfig& overlap) {
  std::set<std::string_view> names;
  for (const Pass& pass : default_pipeline()) {
    if (is_asked_for(pass, overlap)) {
      names.insert(pass.name);
    }
  }
  return names;
}

/// One line per pass that changed something, was skipped, or says why it did not do what was asked
/// for, and one line for all others.
std::string describe_passes(std::span<const PassRecord> passes, const OverlapConfig& overlap) {
  const std::set<std::string_view> asked = asked_for(overlap);
  std::string text;
  std::vector<std::string_view> idle;
  for (const PassRecord& pass : passes) {
    if (!pass.skipped && !pass.report.changed && !asked.contains(pass.name)) {
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

RankPlan plan_programs(std::vector<Program> programs) {
  return plan_with_passes({.programs = std::move(programs), .setup = overlap_setup({})});
}

RunPlan plan_run(const RunSpec& run, const PlanOptions& given_options) {
  PlanOptions options = given_options;
  options.cost_model = options.cost_model != nullptr ? options.cost_model : run.cost_model.get();
  RunPlan plan{.run = run,
               .layout = make_parameter_layout(model_parameters(run.model)),
               .ranks = {},
               .stand_ins = options.stand_ins};
  std::vector<int> ranks = planned_ranks(options, run.mesh);
  const size_t num_wanted = ranks.size();
  const bool is_ordered = run.is_scheduled && options.schedule;
  if (is_ordered && !options.stages_lead) {
    add_missing(leading_ranks(run.mesh), ranks);
  }
  check_program_size(run, ranks, options.for_simulation ? kMaxSimulatedPasses : kMaxPasses);
  plan.ranks.resize(ranks.size());
  KnownPlans known_plans;
  parallel_for(ranks.size(), options.num_threads, [&](size_t i) {
    plan.ranks[i] = plan_rank(run, ranks[i], options, known_plans);
    if (options.for_simulation && !is_ordered && !keeps_buffers(run, ranks[i])) {
      release_buffers(plan.ranks[i]);
    }
  });
  if (is_ordered) {
    schedule_plan(plan, run, options.cost_model, options.verify);
    plan.ranks.erase(plan.ranks.begin() + static_cast<ptrdiff_t>(num_wanted), plan.ranks.end());
  } else {
    note_unscheduled(plan, run.config.overlap);
  }
  const bool all = options.ranks.empty() && !options.one_rank_per_stage;
  check_budgets(plan);
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

std::string describe_run_plan(const RunPlan& plan) {
  const RunSpec& run = plan.run;
  const RunConfig& config = run.config;
  const RankPlan& rank = plan.ranks.front();
  const Program& train = rank.programs[kTrainProgram];
  std::string text = fmt::format("model    {}\n", describe_model(run.model));
  if (const std::vector<std::string> keys = changed_keys_of_preset(config.model); !keys.empty()) {
    text +=
        fmt::format("preset   {} with another {}\n", config.model.preset, fmt::join(keys, ", "));
  }
  text +=
      fmt::format("step     {} ranks x {} microbatches x {} sequences x {} tokens = {} tokens\n",
                  run.mesh.num_ranks(), run.num_microbatches, run.microbatch_sequences,
                  config.train.sequence, format_count(run.tokens_per_step()));
  if (run.model.router.force_balance) {
    text +=
        "note     moe.force_balance = true: routers choose experts in turn, not by their scores\n";
  }
  if (config.moe.force_skew > 0) {
    text += fmt::format("note     moe.force_skew = {}: routers choose experts at random\n",
                        config.moe.force_skew);
  }
  if (!config.moe.replay.empty()) {
    text += fmt::format("note     moe.replay = {}: this file chooses the experts\n",
                        quote(config.moe.replay));
  }
  text += describe_fp8(run);
  text += fmt::format(
      "program  {} tasks, {} buffers, {} streams, {} events {}\n", train.tasks.size(),
      train.buffers.size(), train.streams.size(), train.num_events,
      run.mesh.sizes().pipeline > 1 ? fmt::format("on rank {}", train.rank) : "per rank");
  return text + describe_passes(pass_records(plan.ranks), plan.run.config.overlap) +
         describe_plan(rank.memory) + describe_unit_memory(unit_memory(train)) +
         describe_expert_gathers(expert_gathers(run, rank.layout));
}

}  // namespace braid
