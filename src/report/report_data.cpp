#include "report/report_data.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "memory/max_live.h"
#include "report/expert_loads.h"
#include "report/fp8_table.h"
#include "report/traced_steps.h"
#include "trace/breakdown.h"
#include "trace/explain_exposed.h"
#include "trace/exposed.h"
#include "trace/idle.h"
#include "trace/packed_column.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

/// Six digits are enough for a plot, and keep the page of a long run small.
Json rounded(double value) {
  if (!std::isfinite(value)) {
    return nullptr;
  }
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

template <class Record, class Field>
Json column(const std::vector<Record>& records, Field&& field) {
  Json values = Json::array();
  for (const Record& record : records) {
    values.push_back(field(record));
  }
  return values;
}

Json steps_json(const std::vector<StepRecord>& steps) {
  using Step = StepRecord;
  const auto numbers = [&](double Step::*member) {
    return column(steps, [=](const Step& step) { return rounded(step.*member); });
  };
  Json json;
  json["step"] = column(steps, [](const Step& step) { return step.step; });
  json["loss"] = numbers(&Step::loss);
  const size_t depths = steps.empty() ? 0 : steps.back().mtp_losses.size();
  for (size_t depth = 0; depth < depths; ++depth) {
    json["mtp_losses"].push_back(column(steps, [&](const Step& step) {
      return depth < step.mtp_losses.size() ? rounded(step.mtp_losses[depth]) : Json();
    }));
  }
  if (!steps.empty() && steps.back().preference) {
    const auto of_pairs = [&](double PreferenceRecord::*member) {
      return column(steps, [=](const Step& step) {
        return step.preference ? rounded((*step.preference).*member) : Json();
      });
    };
    json["pairs"] = {{"chosen", of_pairs(&PreferenceRecord::chosen_reward)},
                     {"rejected", of_pairs(&PreferenceRecord::rejected_reward)},
                     {"accuracy", of_pairs(&PreferenceRecord::accuracy)}};
  }
  json["learning_rate"] = numbers(&Step::learning_rate);
  json["grad_norm"] = numbers(&Step::grad_norm);
  json["step_ms"] = numbers(&Step::step_ms);
  json["tokens_per_s"] = numbers(&Step::tokens_per_s);
  json["tflops_per_s_per_rank"] = numbers(&Step::tflops_per_s_per_rank);
  return json;
}

Json evaluations_json(const std::vector<EvalRecord>& evaluations) {
  Json json;
  json["step"] = column(evaluations, [](const EvalRecord& record) { return record.step; });
  json["loss"] = column(evaluations, [](const EvalRecord& record) { return rounded(record.loss); });
  return json;
}

Json passes_json(const std::vector<PassRecord>& passes) {
  return column(passes, [](const PassRecord& pass) {
    return Json{{"name", pass.name},
                {"ms", rounded(static_cast<double>(pass.duration_ns) * 1e-6)},
                {"skipped", pass.skipped},
                {"changed", pass.report.changed},
                {"num_changes", pass.report.num_changes},
                {"summary", pass.report.summary}};
  });
}

int64_t bytes_of(const std::unordered_map<BufferRole, int64_t>& by_role, BufferRole role) {
  const auto found = by_role.find(role);
  return found == by_role.end() ? 0 : found->second;
}

Json unit_memory_json(const UnitMemory& memory) {
  const UnitPools& pools = memory.pools;
  return {{"what", memory.what},
          {"planned_bytes", pools.planned_bytes},
          {"live_bytes", pools.live_bytes},
          {"max_pool_bytes", pools.max_pool_bytes},
          {"kind_pools_bytes", pools.kind_pools_bytes},
          {"own_bytes", pools.own_bytes}};
}

Json memory_json(const ReportInput& input) {
  const MemoryPlan& plan = input.memory;
  StepPlan step;
  for (const StepPlan& program : plan.programs) {
    if (program.arena_bytes > step.arena_bytes) {
      step = program;
    }
  }
  Json classes = Json::array();
  for (size_t index = 0; index < kNumBufferRoles; ++index) {
    const auto role = static_cast<BufferRole>(index);
    const int64_t persistent_bytes = bytes_of(plan.persistent_by_role, role);
    const int64_t step_bytes = bytes_of(step.peak_by_role, role);
    if (persistent_bytes + step_bytes > 0) {
      classes.push_back({{"name", role_name(role)},
                         {"persistent_bytes", persistent_bytes},
                         {"step_bytes", step_bytes}});
    }
  }
  return {{"rank", input.memory_rank},     {"persistent_bytes", plan.persistent_bytes},
          {"step_bytes", plan.step_bytes}, {"max_live_bytes", step.max_live_bytes},
          {"classes", std::move(classes)}, {"units", column(input.unit_memory, unit_memory_json)}};
}

Json communication_json(std::string_view name, const CommunicationTime& time) {
  return {{"name", name},
          {"num_tasks", time.num_tasks},
          {"bytes", time.bytes},
          {"total_ns", time.total_ns},
          {"exposed_ns", time.exposed_ns},
          {"exposed_wait_ns", time.exposed_wait_ns}};
}

Json reasons_json(const ExplainedCommunication& one) {
  Json reasons = Json::array();
  for (size_t i = 0; i < kNumExposedReasons; ++i) {
    if (one.by_reason_ns.at(i) > 0) {
      reasons.push_back({{"reason", exposed_reason_name(static_cast<ExposedReason>(i))},
                         {"ns", one.by_reason_ns.at(i)}});
    }
  }
  return reasons;
}

Json explained_json(const Timeline& timeline) {
  return column(explain_exposed(timeline), [](const ExplainedCommunication& one) {
    Json json = communication_json(group_kind_name(one.kind), one.time);
    json["sentence"] = describe_exposed(one);
    json["reasons"] = reasons_json(one);
    return json;
  });
}

Json memory_curve_json(const MemoryCurve& curve) {
  Json classes = Json::array();
  for (size_t role = 0; role < kNumBufferRoles; ++role) {
    const std::vector<int64_t>& bytes = curve.live_bytes.at(role);
    if (std::any_of(bytes.begin(), bytes.end(), [](int64_t value) { return value > 0; })) {
      classes.push_back(
          {{"name", role_name(static_cast<BufferRole>(role))}, {"bytes", packed_column(bytes)}});
    }
  }
  return {{"rank", curve.rank},
          {"high_bytes", curve.high_bytes},
          {"persistent_bytes", curve.persistent_bytes},
          {"step_bytes", curve.step_bytes},
          {"time_ns", packed_column(curve.time_ns)},
          {"classes", std::move(classes)}};
}

Json op_json(const OpTime& time) {
  return {{"op", time.op},
          {"kind", time.kind},
          {"num_tasks", time.num_tasks},
          {"busy_ns", time.busy_ns},
          {"flops", rounded(time.flops)},
          {"bytes", rounded(time.bytes)},
          {"least_ns", rounded(time.least_ns)}};
}

/// The name of the task at one side of a gap.
Json task_name(const RankTimeline& rank, uint32_t task) {
  return task < rank.tasks.size() ? rank.names[rank.tasks[task].name] : "work of no task";
}

Json idle_json(const RankTimeline& rank, const StepBreakdown& breakdown, int64_t step_ns) {
  Json longest = column(breakdown.longest, [&](const Gap& gap) {
    return Json{{"start_ns", gap.start_ns},
                {"duration_ns", gap.duration_ns()},
                {"after", gap.start_ns == 0 ? Json() : task_name(rank, gap.after)},
                {"before", gap.end_ns == step_ns ? Json() : task_name(rank, gap.before)}};
  });
  return {{"total_ns", breakdown.idle_ns},
          {"num_gaps", breakdown.num_gaps},
          {"longest", std::move(longest)}};
}

Json bubble_json(const IdleTimes& idle) {
  return {{"warmup_ns", idle.warmup_ns},
          {"steady_ns", idle.steady_ns},
          {"cooldown_ns", idle.cooldown_ns}};
}

Json rank_json(const RankTimeline& rank, const RankTimes& times, const StepBreakdown& breakdown) {
  Json by_group = Json::array();
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    if (times.by_group[kind].num_tasks > 0) {
      by_group.push_back(
          communication_json(group_kind_name(static_cast<GroupKind>(kind)), times.by_group[kind]));
    }
  }
  return {{"rank", times.rank},
          {"step_ns", times.step_ns},
          {"compute_ns", times.compute_ns},
          {"copy_ns", times.copy_ns},
          {"bubble_ns", times.bubble_ns},
          {"bubble", bubble_json(analyze_idle(rank, times.step_ns))},
          {"communication", communication_json("all", times.communication)},
          {"by_group", std::move(by_group)},
          {"device",
           {{"name", rank.device.name},
            {"flops_per_s", rank.device.flops_per_s},
            {"bytes_per_s", rank.device.bytes_per_s}}},
          {"ops", column(breakdown.ops, op_json)},
          {"no_task_ns", breakdown.no_task_ns},
          {"idle", idle_json(rank, breakdown, times.step_ns)}};
}

Json ranks_json(const Timeline& timeline) {
  const std::vector<RankTimes> times = analyze_timeline(timeline);
  const std::vector<StepBreakdown> breakdowns = break_down(timeline);
  Json ranks = Json::array();
  for (size_t i = 0; i < timeline.ranks.size(); ++i) {
    ranks.push_back(rank_json(timeline.ranks[i], times[i], breakdowns[i]));
  }
  return ranks;
}

std::string replace_all(const std::string& text, char from, std::string_view to) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    if (c == from) {
      result += to;
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

std::string report_data_json(const ReportInput& input) {
  Json json;
  json["title"] = input.title;
  json["model"] = input.model;
  json["config"] = input.config_toml;
  json["unigram_entropy"] = input.unigram_entropy > 0 ? rounded(input.unigram_entropy) : Json();
  set_metrics(json, {.steps = input.steps,
                     .evaluations = input.evaluations,
                     .fp8 = input.fp8,
                     .experts = input.experts});
  json["passes"] = passes_json(input.passes);
  json["simulation"] = input.simulation.empty()
                           ? Json()
                           : parse_ordered_json(input.simulation, "the simulation of a report");
  json["memory"] = memory_json(input);
  json["memory_over_time"] = column(input.memory_over_time, memory_curve_json);
  json["communication"] = explained_json(input.timeline);
  json["layout"] = {
      {"text", input.layout}, {"columns", input.stages.columns}, {"rows", input.stages.rows}};
  json["ranks"] = ranks_json(input.timeline);
  json["traced_steps"] = traced_steps_json(input.traced_steps);
  return script_json(json);
}

void set_metrics(Json& data, const Metrics& metrics) {
  data["steps"] = steps_json(metrics.steps);
  data["evaluations"] = evaluations_json(metrics.evaluations);
  const ReportTable fp8 = fp8_table(metrics.fp8);
  if (fp8.rows.empty()) {
    data.erase("fp8_watch");
  } else {
    data["fp8_watch"] = {{"columns", fp8.columns}, {"rows", fp8.rows}};
  }
  if (metrics.experts.empty()) {
    data.erase("experts");
  } else {
    data["experts"] = expert_json(metrics.experts, metrics.steps);
  }
}

std::string script_json(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return replace_all(text, '<', "\\u003c");  // "<" occurs only inside strings in JSON
}

std::string escape_html(const std::string& text) {
  std::string escaped = replace_all(text, '&', "&amp;");  // first, because the others add some
  escaped = replace_all(escaped, '<', "&lt;");
  escaped = replace_all(escaped, '>', "&gt;");
  escaped = replace_all(escaped, '"', "&quot;");
  return replace_all(escaped, '\'', "&#39;");
}

}  // namespace braid
