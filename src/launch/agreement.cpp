#include "launch/agreement.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/build_id.h"
#include "base/byte_fields.h"
#include "base/env.h"
#include "base/errors.h"
#include "base/text.h"
#include "comm/transport.h"
#include "config/reference.h"
#include "parallel/call_lines.h"
#include "plan/rank_kinds.h"
#include "plan/rank_programs.h"

namespace braid {
namespace {

/// The first line of `text` that `other` lacks; empty if there is none.
std::string first_difference(const std::string& text, const std::string& other) {
  const std::vector<std::string> lines = split_text(text, '\n');
  const std::vector<std::string> others = split_text(other, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i >= others.size() || lines[i] != others[i]) {
      return lines[i];
    }
  }
  return "";
}

std::string values_of(std::span<const Fact> facts) {
  ByteWriter values;
  for (const Fact& fact : facts) {
    values.text(fact.value);
  }
  return values.take();
}

/// What a process has in place of the value of rank 0, as text for all ranks; empty if it has the
/// same.
std::string difference(const std::string& own, const std::string& first) {
  constexpr size_t kShownBytes = 300;
  return own == first ? ""
                      : fmt::format("{}, and rank 0: {}",
                                    printable(first_difference(own, first), kShownBytes),
                                    printable(first_difference(first, own), kShownBytes));
}

/// Reads the next difference of each rank. Empty if there is none.
std::string describe_difference(const Fact& fact, std::span<ByteReader> ranks) {
  std::string line;
  int num_others = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string text = ranks[rank].text();
    num_others += text.empty() ? 0 : 1;
    if (num_others == 1 && line.empty()) {
      line =
          fmt::format("the {} of rank {} differs from that of rank 0: {}", fact.name, rank, text);
    }
  }
  const std::string more =
      num_others < 2 ? "" : fmt::format(" ({} ranks differ from rank 0)", num_others);
  return line.empty() ? "" : fmt::format("{}{}; {}", line, more, fact.advice);
}

/// Name and reason, as gathered by `agree_on_device`.
std::string describe_backend(const Device& device) {
  return device.reason.empty() ? std::string(device.backend->name)
                               : fmt::format("{}: {}", device.backend->name, device.reason);
}

std::string_view name_of(std::string_view described) {
  return described.substr(0, described.find(':'));
}

std::string bytes_of(const ShownCalls& shown) {
  ByteWriter writer;
  for (const uint64_t hash : shown) {
    writer.number(hash);
  }
  return writer.take();
}

ShownCalls shown_in(std::string_view bytes) {
  ByteReader reader(bytes);
  ShownCalls shown;
  while (!reader.rest().empty()) {
    shown.push_back(reader.number<uint64_t>());
  }
  return shown;
}

/// A rank whose process sent other calls than its plan in this process; nullopt if there is none.
std::optional<int> other_than_planned(const PlannedKinds& kinds,
                                      std::span<const ShownCalls> shown) {
  for (size_t rank = 0; rank < shown.size(); ++rank) {
    const RankPlan& planned = kinds.of_rank(static_cast<int>(rank));
    const bool is_itself = planned.programs[kTrainProgram].rank == static_cast<int>(rank);
    if (is_itself && shown_calls(planned) != shown[rank]) {
      return static_cast<int>(rank);
    }
  }
  return std::nullopt;
}

/// "call 3 of program train is X, and rank 0 plans Y for it".
std::string first_other_call(const RankPlan& planned, std::string_view bytes) {
  ByteReader reader(bytes);
  for (const Program& program : planned.programs) {
    const std::vector<std::string> expected = call_lines(program);
    const std::vector<std::string> lines = split_text(reader.text(), '\n');
    for (size_t i = 0; i < std::max(lines.size(), expected.size()); ++i) {
      const std::string line = i < lines.size() ? lines[i] : "nothing";
      const std::string other = i < expected.size() ? expected[i] : "nothing";
      if (line != other) {
        return fmt::format("call {} of program {} is \"{}\", but rank 0 plans \"{}\" for it", i + 1,
                           program.name, line, other);
      }
    }
  }
  return "no call differs";
}

std::string all_calls(const RankPlan& rank) {
  ByteWriter writer;
  for (const Program& program : rank.programs) {
    writer.text(join(call_lines(program), "\n"));
  }
  return writer.take();
}

}  // namespace

void agree_on(ProcessGroup& processes, std::span<const Fact> facts) {
  // Process 0 sends its values; the others answer with differences, which are short.
  const std::string values = processes.broadcast("facts", values_of(facts));
  ByteReader first(values);
  ByteWriter own;
  for (const Fact& fact : facts) {
    own.text(difference(fact.value, first.text()));
  }
  const std::vector<std::string> all = processes.all_gather("other facts", own.take());
  std::vector<ByteReader> differences(all.begin(), all.end());
  std::vector<std::string> lines;
  for (const Fact& fact : facts) {
    const std::string line = describe_difference(fact, differences);
    if (!line.empty()) {
      lines.push_back(line);
    }
  }
  if (!lines.empty()) {
    throw ConfigError(join(lines, "\n"));
  }
}

std::vector<Fact> facts_of_start(const RunConfig& config) {
  return {{.name = "build", .value = build_id(), .advice = "start the same file on all hosts"},
          {.name = "configuration",
           .value = to_toml(config),
           .advice = "give all processes the same run file and options"}};
}

Fact fact_of_numerics(const Device& device) {
  std::vector<std::string> libraries = split_text(device.backend->software(), ',');
  // Drivers change no result: kernels are compiled for the GPU, or come with these libraries.
  std::erase_if(libraries, [](const std::string& one) { return one.starts_with("driver "); });
  return {.name = "set of libraries",
          .value = join(libraries, ", "),
          .advice = "results may depend on them; run on hosts with the same libraries and CPUs"};
}

void agree_on_device(ProcessGroup& processes, const Device& device) {
  const std::vector<std::string> all = processes.all_gather("the device", describe_backend(device));
  for (size_t i = 1; i < all.size(); ++i) {
    if (name_of(all[i]) != name_of(all[0])) {
      throw_config_error(
          "runtime.device = \"auto\": rank {} would run on {}, but rank 0 on {}; make them the "
          "same, or set runtime.device = \"cpu\"",
          i, all[i], all[0]);
    }
  }
}

void agree_on_programs(ProcessGroup& processes, const RunPlan& plan) {
  const RankPlan& own = plan_of_rank(plan, processes.index());
  check_groups(plan.run.mesh, own);
  const std::vector<std::string> given =
      processes.all_gather("the calls of each rank", bytes_of(shown_calls(own)));
  const bool checks = processes.leads() && read_debug_options().verify.value_or(true);
  PlannedKinds kinds;
  std::optional<int> other;
  if (checks) {
    std::vector<ShownCalls> shown;
    for (const std::string& bytes : given) {
      shown.push_back(shown_in(bytes));
    }
    kinds = plan_kinds(plan, alike_ranks(shown));
    other = other_than_planned(kinds, shown);
  }
  const std::string asked =
      processes.broadcast("a rank with other calls", other ? std::to_string(*other) : "");
  const std::vector<std::string> calls = processes.gather(
      "other calls", asked == std::to_string(processes.index()) ? all_calls(own) : "");
  if (other) {
    const auto rank = static_cast<size_t>(*other);
    throw_config_error("the program of rank {} differs: {}; run the same braid on all hosts", rank,
                       first_other_call(kinds.of_rank(*other), calls[rank]));
  }
  if (checks) {
    verify_kinds(plan.run.mesh, kinds);
  }
}

void finish_or_abort(ProcessGroup& processes, const std::function<void()>& part) {
  try {
    part();
    processes.finish();
  } catch (const AbortedError& error) {
    processes.abort(error.what());
    throw;
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    const bool named = processes.leads() || reason.starts_with("rank ");
    processes.abort(named ? reason : fmt::format("rank {}: {}", processes.index(), reason));
    throw;
  }
}

}  // namespace braid
