#include "parallel/call_lines.h"

#include <fmt/core.h>

#include <optional>
#include <string_view>
#include <utility>

#include "base/philox.h"
#include "ir/text.h"
#include "ops/collectives.h"
#include "ops/op.h"

namespace braid {
namespace {

bool communicates(const OpSpec& spec) {
  return find_op(spec.op).op_class == OpClass::kCommunication;
}

/// The part of a line after the op's name: what both ends of a call must agree on, and the group.
std::string describe_call_spec(const Program& program, const OpSpec& spec) {
  std::string text;
  for (const Attribute& attribute : spec.attributes) {
    if (attribute.name != "group") {
      text += fmt::format(" {}={}", attribute.name, print_attribute_value(attribute.value));
    }
  }
  for (const OperandSpec& operand : spec.operands) {
    text += fmt::format(" {}{}", dtype_name(operand.dtype), to_string(operand.shape));
  }
  if (const std::optional<GroupId> id = group_of(program, spec)) {
    const Group& group = program.groups[id->index()];
    text += fmt::format(" in group {} of {}", group.name, group.ranks.size());
  }
  return text;
}

class LineWriter {
 public:
  explicit LineWriter(const Program& program)
      : program_(program), recorder_(program.num_events, kNobody) {
    for (const OpSpec& spec : program.specs.all()) {
      calls_.push_back(communicates(spec) ? std::optional(describe_call_spec(program, spec))
                                          : std::nullopt);
    }
  }

  std::vector<std::string> write() {
    for (size_t i = 0; i < program_.tasks.size(); ++i) {
      const Task& task = program_.tasks[i];
      const std::optional<std::string>& call = calls_[task.spec.index()];
      if (call || task.record.valid() || task.num_waits > 0) {
        const std::string_view phase = phase_name(task.label.phase);
        lines_.push_back(
            (call ? fmt::format("{} {}{}", describe_task(program_, TaskId(i)), phase, *call)
                  : std::string("a task")) +
            describe_place(task));
      }
    }
    return std::move(lines_);
  }

 private:
  static constexpr size_t kNobody = SIZE_MAX;

  std::string describe_place(const Task& task) {
    const size_t line = lines_.size();
    std::string text = fmt::format(", stream {} {}", task.stream.value,
                                   program_.streams[task.stream.index()].name);
    for (const EventId event : program_.waits_of(task)) {
      const size_t recorder = recorder_.at(event.index());
      text += recorder == kNobody ? ", waits for nobody"
                                  : fmt::format(", waits for {} up", line - recorder);
    }
    if (task.record.valid()) {
      recorder_.at(task.record.index()) = line;
      text += ", recorded";
    }
    return text;
  }

  const Program& program_;
  std::vector<std::optional<std::string>> calls_;  // by spec; empty: the spec does not communicate
  std::vector<size_t> recorder_;                   // by event: the line that records it
  std::vector<std::string> lines_;
};

}  // namespace

std::vector<std::string> call_lines(const Program& program) {
  return LineWriter(program).write();
}

uint64_t hash_of_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    text += line + '\n';
  }
  return stable_hash(text.data(), text.size());
}

}  // namespace braid
