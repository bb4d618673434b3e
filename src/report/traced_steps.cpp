#include "report/traced_steps.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.h"
#include "base/json.h"
#include "ir/program.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

int64_t whole(double ns) {
  return std::llround(ns);
}

Json communication_json(const CommunicationSummary& communication) {
  return {{"total_ns", whole(communication.total_ns)},
          {"exposed_ns", whole(communication.exposed_ns)},
          {"exposed_wait_ns", whole(communication.exposed_wait_ns)}};
}

CommunicationSummary communication_in(const Json& json) {
  return {.total_ns = json.at("total_ns").get<double>(),
          .exposed_ns = json.at("exposed_ns").get<double>(),
          .exposed_wait_ns = json.value("exposed_wait_ns", 0.0)};  // older runs lack it
}

/// The kinds or phases that communicate, by name.
template <size_t kCount, class NameOf>
Json parts_json(const std::array<CommunicationSummary, kCount>& parts, NameOf&& name_of) {
  Json json = Json::object();
  for (size_t i = 0; i < kCount; ++i) {
    if (parts[i].total_ns > 0) {
      json[std::string(name_of(i))] = communication_json(parts[i]);
    }
  }
  return json;
}

template <size_t kCount, class NameOf>
void read_parts(const Json& json, std::array<CommunicationSummary, kCount>& parts,
                NameOf&& name_of) {
  for (size_t i = 0; i < kCount; ++i) {
    const auto found = json.find(std::string(name_of(i)));
    if (found != json.end()) {
      parts[i] = communication_in(*found);
    }
  }
}

std::string_view op_kind_name(size_t kind) {
  return group_kind_name(static_cast<GroupKind>(kind));
}

std::string_view phase_name_at(size_t phase) {
  return phase_name(static_cast<Phase>(phase));
}

StepSummary summary_in(const Json& json) {
  StepSummary summary{.step_ns = json.at("step_ns").get<double>(),
                      .compute_ns = json.at("compute_ns").get<double>(),
                      .copy_ns = json.at("copy_ns").get<double>(),
                      .idle_ns = json.at("idle_ns").get<double>(),
                      .communication = communication_in(json.at("communication")),
                      .by_group = {},
                      .by_phase = {},
                      .ops = {}};
  read_parts(json.at("by_group"), summary.by_group, op_kind_name);
  read_parts(json.at("by_phase"), summary.by_phase, phase_name_at);
  for (const Json& op : json.at("ops")) {
    summary.ops.push_back({.op = op.at("op").get<std::string>(),
                           .num_tasks = op.at("num_tasks").get<double>(),
                           .busy_ns = op.at("busy_ns").get<double>()});
  }
  return summary;
}

double median_step_ns(const Json& data) {
  std::vector<double> times_ms;
  for (const Json& value : data.at("steps").at("step_ms")) {
    if (value.is_number()) {
      times_ms.push_back(value.get<double>());
    }
  }
  if (times_ms.empty()) {
    return 0;
  }
  const auto middle = times_ms.begin() + static_cast<std::ptrdiff_t>(times_ms.size() / 2);
  std::nth_element(times_ms.begin(), middle, times_ms.end());
  return *middle * 1e6;
}

}  // namespace

Json summary_json(const StepSummary& summary) {
  Json ops = Json::array();
  for (const OpSummary& op : summary.ops) {
    ops.push_back({{"op", op.op}, {"num_tasks", op.num_tasks}, {"busy_ns", whole(op.busy_ns)}});
  }
  return {{"step_ns", whole(summary.step_ns)},
          {"compute_ns", whole(summary.compute_ns)},
          {"copy_ns", whole(summary.copy_ns)},
          {"idle_ns", whole(summary.idle_ns)},
          {"communication", communication_json(summary.communication)},
          {"by_group", parts_json(summary.by_group, op_kind_name)},
          {"by_phase", parts_json(summary.by_phase, phase_name_at)},
          {"ops", std::move(ops)}};
}

Json traced_steps_json(std::span<const TracedStep> steps) {
  Json json = Json::array();
  for (const TracedStep& step : steps) {
    Json one = {{"step", step.step}};
    one.update(summary_json(step.summary));
    json.push_back(std::move(one));
  }
  return json;
}

MeasuredSteps measured_steps(const RunReport& run, const std::string& path) {
  MeasuredSteps measured;
  try {
    const Json data = parse_ordered_json(run.json, fmt::format("'{}'", path)).at("data");
    for (const Json& step : data.value("traced_steps", Json::array())) {
      const std::optional<int64_t> number = json_integer(step.at("step"));
      if (!number) {
        throw_data_error("'{}': the traced steps of its report.json are damaged: step {}", path,
                         step.at("step").dump());
      }
      measured.traced.push_back({.step = *number, .summary = summary_in(step)});
    }
    measured.median_step_ns = median_step_ns(data);
  } catch (const Json::exception& error) {
    throw_data_error("'{}': the traced steps of its report.json are damaged: {}", path,
                     error.what());
  }
  if (measured.traced.empty()) {
    throw_data_error(
        "'{}' has no traced step to compare with; train with logging.trace_steps = [2, 3, 4]",
        path);
  }
  return measured;
}

}  // namespace braid
