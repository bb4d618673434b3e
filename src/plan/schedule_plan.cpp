#include "plan/schedule_plan.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "passes/all_ranks.h"
#include "passes/runner.h"
#include "passes/schedule/schedule_step.h"
#include "plan/memory_needs.h"

namespace braid {
namespace {

bool is_named(const std::vector<std::string>& names, std::string_view pass) {
  return std::ranges::find(names, pass) != names.end();
}

PassReport nothing_asked_for(AllRanks&, const PassContext&) {
  return {false, 0, "not asked for"};
}

/// All passes. Passes over all ranks do nothing unless a key asks for them.
std::vector<Pass> passes_for(const OverlapConfig& overlap, PipelineOptions options,
                             const std::vector<std::string>& disabled) {
  WholeStepOptions& step = options.of<WholeStepOptions>();  // shared by both passes
  step.orders = step.orders && !is_named(disabled, kListSchedule);
  step.chooses_engines = step.chooses_engines && !is_named(disabled, kChooseEngines);
  std::vector<Pass> passes = default_pipeline(options);
  for (Pass& pass : passes) {
    if (pass.run_all && !is_on(pass, overlap)) {
      pass.run_all = nothing_asked_for;
    }
  }
  return passes;
}

void check_costs(const std::vector<Pass>& passes, const OverlapConfig& overlap,
                 const std::vector<std::string>& disabled) {
  for (const Pass& pass : passes) {
    if (pass.run_all && !pass.needs_costs.empty() && is_on(pass, overlap) &&
        !is_named(disabled, pass.name)) {
      throw_config_error("{}, or set overlap.cost to a cluster like \"h200x8\"", pass.needs_costs);
    }
  }
}

/// Indices of the plan's ranks: those that lead first, by rank, so that their order does not depend
/// on what else is planned.
std::vector<size_t> leaders_first(const RunPlan& plan, const std::vector<size_t>& leader_of) {
  std::vector<size_t> order(leader_of.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) {
    return std::pair{leader_of[i] != i, plan.ranks[i].programs[kTrainProgram].rank};
  });
  return order;
}

/// The same programs in another order.
RankPrograms permuted(const RankPrograms& ranks, const std::vector<uint32_t>& place_of) {
  RankPrograms result = ranks;
  for (size_t i = 0; i < place_of.size(); ++i) {
    result.programs[place_of[i]] = ranks.programs[i];
  }
  for (uint32_t& program : result.program_of) {
    program = place_of[program];
  }
  return result;
}

RankPrograms leading_programs(const Mesh& mesh, const AllRanks& all) {
  RankPrograms leading{.programs = {}, .program_of = all.ranks.program_of, .ranks_of_group = {}};
  for (size_t i = 0; i < all.planned.size() && all.leader_of[i] == i; ++i) {
    leading.programs.push_back(all.ranks.programs[i]);
  }
  for (uint32_t& program : leading.program_of) {
    program = all.leader_of[program];
  }
  take_groups_of(mesh, leading);
  return leading;
}

/// `cost_model` may be null.
AllRanks all_ranks_of(RunPlan& plan, bool repeatable, const CostModel* cost_model) {
  const std::vector<size_t> leader_of = leaders_of(plan);
  const std::vector<size_t> order = leaders_first(plan, leader_of);
  std::vector<uint32_t> place_of(order.size());
  for (uint32_t place = 0; place < order.size(); ++place) {
    place_of[order[place]] = place;
  }
  AllRanks all;
  for (const size_t index : order) {
    RankPlan& rank = plan.ranks[index];
    PlannedStep& planned = all.planned.emplace_back();
    planned.programs = &rank.programs;
    planned.memory = &rank.memory;
    if (cost_model != nullptr) {
      planned.beside_bytes =
          rank_bytes(cost_model->cluster().device, rank, repeatable) - rank.memory.step_bytes;
    }
    all.leader_of.push_back(place_of[leader_of[index]]);
  }
  all.ranks = permuted(rank_programs(plan), place_of);
  all.leading = leading_programs(plan.run.mesh, all);
  all.has_pipeline = plan.run.mesh.sizes().pipeline > 1;
  return all;
}

void add_records(RunPlan& plan, const std::vector<PassRecord>& records) {
  for (RankPlan& rank : plan.ranks) {
    rank.passes.insert(rank.passes.end(), records.begin(), records.end());
  }
}

}  // namespace

std::vector<std::string> disabled_passes(const OverlapSetup& setup,
                                         const std::vector<std::string>& by_key,
                                         const DebugOptions& debug) {
  std::vector<std::string> disabled = setup.disabled_passes;
  for (const auto* names : {&by_key, &debug.disabled_passes}) {
    disabled.insert(disabled.end(), names->begin(), names->end());
  }
  return disabled;
}

bool is_scheduled(const OverlapConfig& overlap) {
  return std::ranges::any_of(all_ranks_passes(default_pipeline()), [&](const Pass& pass) {
    return is_on(pass, overlap) && !is_named(overlap.disable_passes, pass.name);
  });
}

void schedule_plan(RunPlan& plan, const RunSpec& run, const CostModel* cost_model, bool verify) {
  const DebugOptions debug = read_debug_options();
  const OverlapConfig& overlap = run.config.overlap;
  const RunOptions options{
      .disabled_passes = disabled_passes(run.passes, overlap.disable_passes, debug),
      .verify = debug.verify.value_or(verify),
      .dump_folder = debug.dump_program_folder};
  const std::vector<Pass> passes = passes_for(overlap, run.passes.options, options.disabled_passes);
  if (cost_model == nullptr) {
    check_costs(passes, overlap, options.disabled_passes);
  }
  PassContext context = run.passes.context;
  context.cost_model = cost_model;
  AllRanks all = all_ranks_of(plan, run.config.runtime.repeatable, cost_model);
  all.quick_memory = !verify;
  add_records(plan, run_all_passes(all, passes, context, options));
}

void note_unscheduled(RunPlan& plan, const OverlapConfig& overlap) {
  const std::vector<std::string> disabled = read_debug_options().disabled_passes;
  std::vector<PassRecord> records;
  for (const Pass& pass : all_ranks_passes(default_pipeline())) {
    const bool skipped =
        is_named(overlap.disable_passes, pass.name) || is_named(disabled, pass.name);
    records.push_back({.name = pass.name,
                       .skipped = skipped,
                       .report = {.summary = skipped ? "disabled" : "not asked for"}});
  }
  add_records(plan, records);
}

}  // namespace braid
