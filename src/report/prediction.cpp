#include "report/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/text.h"
#include "ir/program.h"
#include "report/traced_steps.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxOps = 8;

/// One figure, measured and predicted.
struct Pair {
  std::string name;
  double measured_ns = 0;
  double predicted_ns = 0;

  double error_ns() const { return predicted_ns - measured_ns; }
};

std::string duration(double ns) {
  return format_duration(ns * 1e-9);
}

std::string line(const Pair& pair, double step_ns) {
  const std::string error =
      pair.measured_ns > 0
          ? fmt::format("{:+.1f}%", error_percent(pair.measured_ns, pair.predicted_ns))
          : "-";
  return fmt::format("{:<26} {:>11} {:>11} {:>9} {:>10}\n", pair.name, duration(pair.measured_ns),
                     duration(pair.predicted_ns), error,
                     step_ns > 0 ? fmt::format("{:+.1f}%", 100.0 * pair.error_ns() / step_ns) : "");
}

/// Exposed communication by kind or phase, for those that occur in either step.
template <size_t kCount, class NameOf>
void add_parts(const std::array<CommunicationSummary, kCount>& measured,
               const std::array<CommunicationSummary, kCount>& predicted, NameOf&& name_of,
               std::vector<Pair>& pairs) {
  for (size_t i = 0; i < kCount; ++i) {
    if (measured[i].total_ns > 0 || predicted[i].total_ns > 0) {
      pairs.push_back(
          {fmt::format("  {}", name_of(i)), measured[i].exposed_ns, predicted[i].exposed_ns});
    }
  }
}

std::vector<Pair> parts_of_step(const StepSummary& measured, const StepSummary& predicted) {
  std::vector<Pair> pairs = {{"step", measured.step_ns, predicted.step_ns},
                             {"compute", measured.compute_ns, predicted.compute_ns},
                             {"exposed communication", measured.communication.exposed_ns,
                              predicted.communication.exposed_ns}};
  add_parts(
      measured.by_group, predicted.by_group,
      [](size_t kind) {
        return fmt::format("{} ranks", group_kind_name(static_cast<GroupKind>(kind)));
      },
      pairs);
  add_parts(
      measured.by_phase, predicted.by_phase,
      [](size_t phase) { return fmt::format("phase {}", phase_name(static_cast<Phase>(phase))); },
      pairs);
  if (measured.communication.exposed_wait_ns > 0 || predicted.communication.exposed_wait_ns > 0) {
    pairs.push_back({"  waits for other ranks", measured.communication.exposed_wait_ns,
                     predicted.communication.exposed_wait_ns});
  }
  pairs.push_back(
      {"all communication", measured.communication.total_ns, predicted.communication.total_ns});
  if (measured.copy_ns > 0 || predicted.copy_ns > 0) {
    pairs.push_back({"copies", measured.copy_ns, predicted.copy_ns});
  }
  pairs.push_back({"idle", measured.idle_ns, predicted.idle_ns});
  return pairs;
}

/// All ops of both, largest error first.
std::vector<Pair> ops_by_error(const Prediction& prediction) {
  std::map<std::string, Pair> by_name;
  for (const OpSummary& op : prediction.measured.ops) {
    by_name[op.op].measured_ns = op.busy_ns;
  }
  for (const OpSummary& op : prediction.predicted.ops) {
    by_name[op.op].predicted_ns = op.busy_ns;
  }
  std::vector<Pair> pairs;
  for (auto& [name, pair] : by_name) {
    pair.name = name;
    pairs.push_back(pair);
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    return std::abs(a.error_ns()) > std::abs(b.error_ns());
  });
  return pairs;
}

}  // namespace

double error_percent(double measured, double predicted) {
  return measured > 0 ? 100.0 * (predicted / measured - 1.0) : 0.0;
}

std::string describe_prediction_error(const Prediction& prediction) {
  const double step_ns = prediction.measured.step_ns;
  std::string text = fmt::format(
      "cost      {}\nmeasured  mean of {} traced step{} and all ranks\n"
      "{:<26} {:>11} {:>11} {:>9} {:>10}\n",
      prediction.cost, prediction.num_steps, prediction.num_steps == 1 ? "" : "s", "", "measured",
      "predicted", "error", "of step");
  for (const Pair& pair : parts_of_step(prediction.measured, prediction.predicted)) {
    text += line(pair, step_ns);
  }
  if (prediction.measured_host_ns > 0) {
    text += line(
        {"with the host, all steps", prediction.measured_host_ns, prediction.predicted_host_ns},
        step_ns);
  }
  text += "largest errors by op, sum of its tasks on a rank\n";
  const std::vector<Pair> ops = ops_by_error(prediction);
  for (size_t i = 0; i < std::min(ops.size(), kMaxOps); ++i) {
    text += line({"  " + ops[i].name, ops[i].measured_ns, ops[i].predicted_ns}, step_ns);
  }
  return text;
}

Json prediction_json(const Prediction& prediction) {
  const StepSummary& measured = prediction.measured;
  const StepSummary& predicted = prediction.predicted;
  return {{"cost", prediction.cost},
          {"num_steps", prediction.num_steps},
          {"measured", summary_json(measured)},
          {"predicted", summary_json(predicted)},
          {"measured_host_ns", prediction.measured_host_ns},
          {"predicted_host_ns", prediction.predicted_host_ns},
          {"error_percent",
           {{"step", error_percent(measured.step_ns, predicted.step_ns)},
            {"host", error_percent(prediction.measured_host_ns, prediction.predicted_host_ns)},
            {"compute", error_percent(measured.compute_ns, predicted.compute_ns)},
            {"exposed",
             error_percent(measured.communication.exposed_ns, predicted.communication.exposed_ns)},
            {"idle", error_percent(measured.idle_ns, predicted.idle_ns)}}}};
}

}  // namespace braid
