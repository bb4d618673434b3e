#include "emulate/describe_emulation.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "trace/exposed.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNsPerMs = 1e6;
constexpr double kNsPerS = 1e9;

/// Sum over all tasks of one op.
struct OpTime {
  int64_t num_tasks = 0;
  int64_t ns = 0;
};

using OpTimes = std::map<std::string, OpTime>;

/// One rank's step, measured or simulated.
struct Side {
  RankTimes times;
  std::vector<PlaceCommunication> places;
  OpTimes ops;
};

/// Of a timeline with one rank.
Side side_of(const Timeline& timeline, int64_t step_ns) {
  const RankTimeline& rank = timeline.ranks.front();
  Side side{
      .times = analyze_rank(rank, step_ns), .places = communication_by_place(timeline), .ops = {}};
  for (const TimelineTask& task : rank.tasks) {
    OpTime& of = side.ops[rank.ops.at(task.op).name];
    ++of.num_tasks;
    of.ns += task.end_ns - task.start_ns;
  }
  return side;
}

struct Sides {
  Side measured;
  Side simulated;
};

Sides sides_of(const RankEmulation& emulation, const SimulatedRun& run) {
  const std::array rank{emulation.timeline.ranks.front().rank};
  return {.measured = side_of(emulation.timeline, step_time_ns(emulation.timeline)),
          .simulated = side_of(run.timeline(rank), run.result().step_ns)};
}

double ms(int64_t ns) {
  return static_cast<double>(ns) / kNsPerMs;
}

/// The error of a prediction relative to the measurement.
std::string error_of(int64_t simulated_ns, int64_t measured_ns) {
  return measured_ns == 0 ? "-"
                          : fmt::format("{:+.1f}%", 100.0 * (static_cast<double>(simulated_ns) /
                                                                 static_cast<double>(measured_ns) -
                                                             1.0));
}

double tokens_per_s_per_rank(const RankEmulation& emulation, const SimulatedRun& run) {
  const auto tokens = static_cast<double>(run.spec().tokens_per_step());
  return tokens / run.spec().mesh.num_ranks() /
         (static_cast<double>(std::max<int64_t>(emulation.median_step_ns(), 1)) / kNsPerS);
}

std::string step_line(const RankEmulation& emulation, const SimulatedRun& run) {
  const auto [least, most] = std::ranges::minmax(emulation.step_ns);
  const int64_t median = emulation.median_step_ns();
  return fmt::format(
      "step      {:.2f} ms, median of {} ({:.2f} to {:.2f} ms), {:.0f} tokens/s on each of {} "
      "ranks; simulated {:.2f} ms, {}\n",
      ms(median), emulation.step_ns.size(), ms(least), ms(most),
      tokens_per_s_per_rank(emulation, run), run.spec().mesh.num_ranks(), ms(run.step_ns()),
      error_of(run.step_ns(), median));
}

std::string exposed_text(const RankTimes& times) {
  std::vector<std::string> kinds;
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    const CommunicationTime& of = times.by_group.at(kind);
    if (of.total_ns > 0) {
      kinds.push_back(fmt::format("{} {:.2f} of {:.2f}",
                                  group_kind_name(static_cast<GroupKind>(kind)), ms(of.exposed_ns),
                                  ms(of.total_ns)));
    }
  }
  return kinds.empty() ? "nothing" : join(kinds, ", ") + " ms";
}

std::string memory_line(const RankEmulation& emulation) {
  const int64_t needed = emulation.planned_bytes + emulation.lasting_bytes;
  const bool equal = needed == emulation.allocated_bytes;
  return fmt::format(
      "memory    planned {}{} {} allocated{}{}\n", format_bytes(emulation.planned_bytes),
      emulation.lasting_bytes == 0
          ? ""
          : fmt::format(" + {} for the data of other ranks", format_bytes(emulation.lasting_bytes)),
      equal ? "=" : "!=", equal ? "" : " " + format_bytes(emulation.allocated_bytes),
      emulation.driver_bytes ? fmt::format("; {} by the driver, including libraries and emulation",
                                           format_bytes(*emulation.driver_bytes))
                             : "");
}

/// The ops of both sides, the longest first.
std::vector<std::string> longest_first(const Sides& sides) {
  std::map<std::string, int64_t> longest;
  for (const Side* const side : {&sides.measured, &sides.simulated}) {
    for (const auto& [op, time] : side->ops) {
      longest[op] = std::max(longest[op], time.ns);
    }
  }
  std::vector<std::string> ops;
  for (const auto& [op, ns] : longest) {
    if (ns > 0) {
      ops.push_back(op);
    }
  }
  std::ranges::stable_sort(ops, [&](const std::string& a, const std::string& b) {
    return longest.at(a) > longest.at(b);
  });
  return ops;
}

OpTime time_of(const Side& side, const std::string& op) {
  const auto found = side.ops.find(op);
  return found == side.ops.end() ? OpTime{} : found->second;
}

std::string op_table(const Sides& sides) {
  std::string text = fmt::format("{:<34} {:>7} {:>11} {:>13} {:>8}\n", "op", "tasks", "measured ms",
                                 "simulated ms", "off");
  for (const std::string& op : longest_first(sides)) {
    const OpTime measured = time_of(sides.measured, op);
    const OpTime simulated = time_of(sides.simulated, op);
    text += fmt::format("{:<34} {:>7} {:>11.2f} {:>13.2f} {:>8}\n", op, measured.num_tasks,
                        ms(measured.ns), ms(simulated.ns), error_of(simulated.ns, measured.ns));
  }
  return text;
}

/// Where the rank communicates, the most exposed first.
std::string place_table(const Sides& sides) {
  if (sides.measured.places.empty()) {
    return "";
  }
  std::string text =
      fmt::format("{:<44} {:>6} {:>11} {:>8} {:>10} {:>13} {:>10}\n", "communication", "times",
                  "measured ms", "hidden", "exposed ms", "simulated ms", "exposed ms");
  for (const PlaceCommunication& place : sides.measured.places) {
    const auto same = std::ranges::find(sides.simulated.places, place.name,
                                        [](const PlaceCommunication& it) { return it.name; });
    const CommunicationTime simulated =
        same == sides.simulated.places.end() ? CommunicationTime{} : same->time;
    const CommunicationTime& time = place.time;
    text += fmt::format("{:<44} {:>6} {:>11.2f} {:>8} {:>10.2f} {:>13.2f} {:>10.2f}\n", place.name,
                        time.num_tasks, ms(time.total_ns), hidden_share(time), ms(time.exposed_ns),
                        ms(simulated.total_ns), ms(simulated.exposed_ns));
  }
  return text + "\n";
}

Json to_json(const Side& side) {
  Json places = Json::object();
  for (const PlaceCommunication& place : side.places) {
    places[place.name] = {{"times", place.time.num_tasks},
                          {"total_ns", place.time.total_ns},
                          {"exposed_ns", place.time.exposed_ns}};
  }
  Json communication = Json::object();
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    const CommunicationTime& of = side.times.by_group.at(kind);
    if (of.total_ns > 0) {
      communication[std::string(group_kind_name(static_cast<GroupKind>(kind)))] = {
          {"total_ns", of.total_ns}, {"exposed_ns", of.exposed_ns}};
    }
  }
  Json ops = Json::object();
  for (const auto& [op, time] : side.ops) {
    ops[op] = {{"tasks", time.num_tasks}, {"ns", time.ns}};
  }
  return {{"step_ns", side.times.step_ns},
          {"compute_ns", side.times.compute_ns},
          {"exposed_ns", side.times.communication.exposed_ns},
          {"copy_ns", side.times.copy_ns},
          {"idle_ns", side.times.bubble_ns},
          {"communication", communication},
          {"places", places},
          {"ops", ops}};
}

}  // namespace

std::string describe_emulation(const RankEmulation& emulation, const SimulatedRun& simulated) {
  const Sides sides = sides_of(emulation, simulated);
  const RankTimes& measured = sides.measured.times;
  const RankTimes& predicted = sides.simulated.times;
  std::string text = step_line(emulation, simulated);
  text +=
      fmt::format("traced    {:.2f} ms ({})\n", ms(measured.step_ns), emulation.timeline.source);
  text +=
      fmt::format("compute   {:.2f} ms, simulated {:.2f} ms: {}\n", ms(measured.compute_ns),
                  ms(predicted.compute_ns), error_of(predicted.compute_ns, measured.compute_ns));
  text +=
      fmt::format("exposed   {}; simulated {}\n", exposed_text(measured), exposed_text(predicted));
  text += fmt::format("idle      {:.2f} ms, simulated {:.2f} ms\n", ms(measured.bubble_ns),
                      ms(predicted.bubble_ns));
  if (emulation.load) {
    text += fmt::format(
        "routing   given: {:.2f} times the rows of equal loads come to the rank, {:.2f} at most\n",
        emulation.load->mean, emulation.load->worst);
  }
  text += memory_line(emulation);
  for (const std::string& note : emulation.notes) {
    text += fmt::format("note      {}\n", note);
  }
  return text + place_table(sides) + op_table(sides);
}

std::string emulation_json(const RankEmulation& emulation, const SimulatedRun& simulated) {
  const Sides sides = sides_of(emulation, simulated);
  Json json = {{"rank", emulation.timeline.ranks.front().rank},
               {"ranks", simulated.spec().mesh.num_ranks()},
               {"cost", simulated.model().description()},
               {"source", emulation.timeline.source},
               {"step_ns", emulation.median_step_ns()},
               {"steps_ns", emulation.step_ns},
               {"tokens_per_s_per_rank", tokens_per_s_per_rank(emulation, simulated)},
               {"simulated_step_ns", simulated.step_ns()},
               {"planned_bytes", emulation.planned_bytes},
               {"lasting_bytes", emulation.lasting_bytes},
               {"allocated_bytes", emulation.allocated_bytes},
               {"measured", to_json(sides.measured)},
               {"simulated", to_json(sides.simulated)},
               {"notes", emulation.notes}};
  if (emulation.load) {
    json["load"] = emulation.load->mean;
    json["worst_load"] = emulation.load->worst;
  }
  if (emulation.driver_bytes) {
    json["driver_bytes"] = *emulation.driver_bytes;
  }
  return json.dump(2) + "\n";
}

}  // namespace braid
