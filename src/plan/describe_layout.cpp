#include "plan/describe_layout.h"

#include <algorithm>

#include "base/errors.h"
#include "base/text.h"
#include "parallel/parameter_groups.h"
#include "parallel/pipeline_layout.h"
#include "parallel/schedule_stats.h"
#include "parallel/schedule_table.h"

namespace braid {
namespace {

std::string describe_pipeline(const ParallelOptions& options, const ScheduleOptions& schedule) {
  return fmt::format(
      "pipeline  {}, {} of {} microbatches, bubble {:.1f}% if all jobs took equally "
      "long\n",
      layout_text(options.stages), schedule_name(schedule.kind), schedule.num_microbatches,
      100.0 * schedule_stats(schedule).bubble_fraction);
}

std::string describe_shards(const ParallelOptions& options, const Mesh& mesh) {
  const int replicas = mesh.sizes().replicas;
  const ParameterDomain domain = parameter_domains(mesh, options, false).front();
  const char* const what = options.shard == ShardKind::kOptimizer ? "optimizer state"
                           : options.shard == ShardKind::kGradients
                               ? "optimizer state and gradients"
                               : "optimizer state, gradients and weights";
  const std::string copies =
      domain.splits_shards()
          ? fmt::format(", {} copies, which share the optimizer state: over {} ranks", replicas,
                        domain.num_parts)
      : replicas > 1 ? fmt::format(", {} copies", replicas)
                     : "";
  return fmt::format("shards    {} over {} ranks{}\n", what, domain.num_shards, copies);
}

/// Ranks among which the tokens of a microbatch are divided.
int64_t ranks_of_tokens(const RunSpec& run) {
  const MeshSizes& sizes = run.mesh.sizes();
  return int64_t{sizes.context} * (run.parallel.sequence_parallel ? sizes.tensor : 1);
}

/// Tokens that a rank has of a microbatch.
int64_t tokens_of_rank(const RunSpec& run) {
  return run.microbatch_sequences * run.config.train.sequence / ranks_of_tokens(run);
}

/// Rows are sent as if all blocks were full.
std::string describe_blocks(const RunSpec& run, const ExpertShard& experts, int64_t tokens) {
  constexpr double kLarge = 2;  // times the bytes of equal loads
  const auto equal =
      static_cast<double>(tokens * run.model.experts_per_token) / static_cast<double>(experts.size);
  const int64_t rows = rows_of_block(run.model, experts, tokens);
  const double padded = static_cast<double>(rows) / equal;
  return fmt::format(
      "exchange  blocks of {} rows for each pair of {} ranks: {:.3g} times the rows of equal "
      "loads{}\n",
      rows, experts.num_ranks(), padded,
      padded > kLarge && run.model.router.expert_capacity == 0
          ? "; moe.capacity = 1.5 would send 1.5 times"
          : "");
}

std::string describe_slots(const RunSpec& run, const ExpertShard& experts, int64_t tokens) {
  const HostRoom room = host_room(run.model, experts, tokens);
  return fmt::format(
      "exchange  one copy of a token for each of {} hosts, in blocks of {} slots; of the {} tokens "
      "of a rank {} go to a host with equal loads\n",
      experts.hosts, room.block_rows, tokens, room.expected_slots / experts.hosts);
}

std::string describe_exchange(const RunSpec& run, const ExpertShard& experts, int64_t tokens) {
  return experts.blocks         ? describe_blocks(run, experts, tokens)
         : experts.over_hosts() ? describe_slots(run, experts, tokens)
                                : "";
}

std::string describe_experts(const RunSpec& run) {
  const ExpertShard experts = expert_shard(run.mesh, 0, run.parallel);
  const int64_t tokens = tokens_of_rank(run);
  return fmt::format(
      "experts   {} on each of {} ranks{}; room for {} rows of {} with equal loads{}\n{}",
      run.model.experts / experts.size, experts.size,
      experts.tensor > 1 ? fmt::format(" x {} parts", experts.tensor) : "",
      expert_room(run.model, experts, tokens),
      tokens * run.model.experts_per_token * experts.tensor,
      experts.drops ? ", more are dropped" : "", describe_exchange(run, experts, tokens));
}

std::string describe_capacity(const RunSpec& run) {
  const int64_t tokens = tokens_of_rank(run);
  return fmt::format(
      "capacity  each expert takes up to {} rows of the {} tokens that a rank has of a microbatch, "
      "{}{}\n",
      rows_of_expert(run.model, tokens), tokens,
      run.model.router.drops_by_position ? "the first ones" : "those with the largest weights",
      ranks_of_tokens(run) > 1
          ? fmt::format("; {} ranks that share a microbatch drop apart", ranks_of_tokens(run))
          : "");
}

std::string describe_documents(const AttentionDocuments& documents) {
  return fmt::format(
      "documents separate in each sequence; on GPUs by kernels of braid's own; predicted times are "
      "those of {}\n",
      documents.document_length > 0
          ? fmt::format("documents of {} tokens", documents.document_length)
          : "whole sequences (data.document_length)");
}

/// Parameter elements that a rank holds, without gaps.
int64_t num_parameters_of(const ParameterLayout& layout) {
  int64_t count = 0;
  for (const ParameterSlot& slot : layout.slots) {
    count += slot.end - slot.begin;
  }
  return count;
}

int64_t bytes_of(const MemoryPlan& memory, BufferRole role) {
  const auto found = memory.persistent_by_role.find(role);
  const int64_t persistent = found == memory.persistent_by_role.end() ? 0 : found->second;
  const auto& step = memory.programs[kTrainProgram].peak_by_role;
  const auto in_step = step.find(role);
  return persistent + (in_step == step.end() ? 0 : in_step->second);
}

ReportTable table_of(const std::vector<const RankPlan*>& ranks, const Mesh& mesh) {
  struct Column {
    const char* name;
    BufferRole role;
  };
  constexpr Column kColumns[] = {
      {"weights", BufferRole::kParam},          {"main weights", BufferRole::kMainWeight},
      {"gradients", BufferRole::kMainGrad},     {"optimizer", BufferRole::kOptimizerState},
      {"activations", BufferRole::kActivation}, {"gathered", BufferRole::kGathered}};
  ReportTable table{.columns = {"rank", "stage", "parameters"}, .rows = {}};
  for (const Column& column : kColumns) {
    table.columns.emplace_back(column.name);
  }
  table.columns.emplace_back("peak");
  for (const RankPlan* rank : ranks) {
    const int number = rank->programs[kTrainProgram].rank;
    std::vector<std::string>& row = table.rows.emplace_back();
    row = {fmt::format("{}", number), fmt::format("{}", mesh.position(number).pipeline),
           format_count(num_parameters_of(rank->layout))};
    for (const Column& column : kColumns) {
      row.push_back(format_bytes(bytes_of(rank->memory, column.role)));
    }
    row.push_back(format_bytes(rank->memory.peak_bytes()));
  }
  return table;
}

/// Right-aligns the cells in their columns; the first two columns are narrow.
std::string line_of(const std::vector<std::string>& cells) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    line += fmt::format("{}{:>{}}", i == 0 ? "" : " ", cells[i], i < 2 ? 6 : 11);
  }
  return line + "\n";
}

}  // namespace

std::string describe_layout(const RunSpec& run) {
  const Mesh& mesh = run.mesh;
  const ParallelOptions& options = run.parallel;
  const MeshSizes& sizes = mesh.sizes();
  std::string text = fmt::format(
      "layout    {} ranks = tensor {}{} x context {} x data {} x pipeline {}\n", mesh.num_ranks(),
      sizes.tensor, options.sequence_parallel && sizes.tensor > 1 ? " (sequence parallel)" : "",
      sizes.context, sizes.data, sizes.pipeline);
  if (sizes.pipeline > 1) {
    text += describe_pipeline(options, run.schedule());
  }
  if (sizes.expert * sizes.expert_tensor > 1) {
    text += describe_experts(run);
  }
  if (run.model.router.expert_capacity > 0) {
    text += describe_capacity(run);
  }
  if (options.shard != ShardKind::kNone) {
    text += describe_shards(options, mesh);
  }
  if (run.documents.documents) {
    text += describe_documents(run.documents);
  }
  if (options.muon || !options.groups.no_decay.empty() || !options.groups.rates.empty()) {
    text += describe_groups(options, run.optimizer.weight_decay, model_parameters(run.model));
  }
  return text;
}

std::vector<std::vector<JobSlot>> pipeline_jobs(const RunSpec& run) {
  if (run.mesh.sizes().pipeline == 1) {
    return {};
  }
  const ScheduleOptions schedule = run.schedule();
  return time_schedules(schedule, make_schedules(schedule));
}

std::string describe_schedule(const RunSpec& run, int max_width) {
  const std::vector<std::vector<JobSlot>> jobs = pipeline_jobs(run);
  if (jobs.empty()) {
    return {};
  }
  return "schedule  by pipeline rank, if forward, dgrad and wgrad took equally long:\n" +
         schedule_table(jobs, {.max_width = max_width});
}

ReportTable stage_table(const RunPlan& plan) {
  std::vector<const RankPlan*> ranks;
  const std::vector<int> first = first_rank_of_stages(plan.run.mesh);
  for (const RankPlan& rank : plan.ranks) {
    if (std::find(first.begin(), first.end(), rank.programs[kTrainProgram].rank) != first.end()) {
      ranks.push_back(&rank);
    }
  }
  check(ranks.size() == first.size(), "not every pipeline stage is planned");
  return table_of(ranks, plan.run.mesh);
}

std::string describe_ranks(const RunPlan& plan) {
  std::vector<const RankPlan*> ranks;
  for (const RankPlan& rank : plan.ranks) {
    ranks.push_back(&rank);
  }
  const auto planned = static_cast<int>(ranks.size());
  std::string text;
  if (planned < plan.run.mesh.num_ranks()) {
    text +=
        fmt::format("planned   {} of {} ranks{}\n", planned, plan.run.mesh.num_ranks(),
                    planned == plan.run.mesh.sizes().pipeline ? ", the first of each stage" : "");
  }
  const ReportTable table = table_of(ranks, plan.run.mesh);
  text += line_of(table.columns);
  for (const std::vector<std::string>& row : table.rows) {
    text += line_of(row);
  }
  return text;
}

}  // namespace braid
