#include "parallel/communication_calls.h"

#include <map>
#include <optional>
#include <tuple>

#include "base/errors.h"
#include "ir/race_detector.h"
#include "ir/text.h"
#include "ops/collectives.h"
#include "ops/op.h"

namespace braid {
namespace {

std::optional<int64_t> integer_attribute(const OpSpec& spec, std::string_view name) {
  const AttributeValue* value = spec.find_attribute(name);
  const int64_t* number = value == nullptr ? nullptr : std::get_if<int64_t>(value);
  return number == nullptr ? std::nullopt : std::optional(*number);
}

int64_t channel_of(const OpSpec& spec) {
  return integer_attribute(spec, "channel").value_or(0);
}

CallKind call_kind(const OpSpec& spec) {
  return communicates_as(spec, CommOp::kSend)   ? CallKind::kSend
         : communicates_as(spec, CommOp::kRecv) ? CallKind::kRecv
                                                : CallKind::kCollective;
}

std::string describe_type(const OperandSpec& operand) {
  return fmt::format("{} {}", dtype_name(operand.dtype), to_string(operand.shape));
}

/// What both ends of a call must agree on. An in-place collective has one operand for both ends of
/// the transfer.
std::string form_of(const OpSpec& spec, MessageOrder order) {
  if (call_kind(spec) != CallKind::kCollective) {
    const std::string type =
        describe_type(spec.operands.front()) + (is_by_copy_engine(spec) ? " by copy engine" : "");
    return order == MessageOrder::kPerChannel
               ? type
               : fmt::format("{} on channel {}", type, channel_of(spec));
  }
  std::string form = spec.op;
  for (const Attribute& attribute : spec.attributes) {
    if (attribute.name != "group") {
      form += fmt::format(" {}={}", attribute.name, print_attribute_value(attribute.value));
    }
  }
  return fmt::format("{} {} -> {}", form, describe_type(spec.operands.front()),
                     describe_type(spec.operands.back()));
}

/// Says why the shapes do not fit a group with `members` ranks; empty if they do.
std::string shape_fault(const OpSpec& spec, int64_t members) {
  const auto rows = [](const OperandSpec& operand) {
    return operand.shape.rank() == 0 ? 1 : operand.shape[0];
  };
  const int64_t x = rows(spec.operands.front());
  const int64_t y = rows(spec.operands.back());
  const CommShape shape = find_op(spec.op).communication->shape;
  const bool fits = shape == CommShape::kGather    ? y == members * x
                    : shape == CommShape::kScatter ? x == members * y
                    : shape == CommShape::kBlocks  ? x % members == 0
                                                   : true;
  return fits ? ""
              : fmt::format("{} -> {} does not fit a group of {}",
                            describe_type(spec.operands.front()),
                            describe_type(spec.operands.back()), members);
}

std::string member_fault(const OpSpec& spec, std::string_view attribute, int64_t members) {
  const auto member = integer_attribute(spec, attribute);
  return !member || (*member >= 0 && *member < members)
             ? ""
             : fmt::format("{} {} is not a member of a group of {}", attribute, *member, members);
}

std::string spec_fault(const Program& program, const OpSpec& spec) {
  const auto group = group_of(program, spec);
  if (!group || spec.operands.empty()) {
    return "no group of this program, or no operand";
  }
  const auto members = static_cast<int64_t>(program.groups[group->index()].ranks.size());
  if (members == 0) {
    return "a group without ranks";
  }
  if (call_kind(spec) != CallKind::kCollective && !integer_attribute(spec, "peer")) {
    return "no peer";
  }
  for (const std::string& fault :
       {member_fault(spec, "root", members), member_fault(spec, "peer", members),
        shape_fault(spec, members)}) {
    if (!fault.empty()) {
      return fault;
    }
  }
  return {};
}

class CallFinder {
 public:
  CallFinder(const Program& program, MessageOrder order, StringTable& forms,
             std::vector<std::string>& faults)
      : program_(program),
        order_(order),
        faults_(faults),
        use_of_group_(program.groups.size(), kNone) {
    result_.program = &program;
    result_.streams.resize(program.streams.size());
    result_.recorder.resize(program.num_events, kNone);
    for (const OpSpec& spec : program.specs.all()) {
      specs_.push_back(examine(spec, forms));
    }
  }

  ProgramCalls find() {
    find_recorders();
    for (size_t i = 0; i < program_.tasks.size(); ++i) {
      visit(TaskId(i));
    }
    return std::move(result_);
  }

 private:
  static constexpr uint32_t kNone = ProgramCalls::kNone;

  struct SpecFacts {
    bool communicates = false;
    uint32_t sequence = 0;
    uint32_t form = 0;
    std::string fault;
  };

  SpecFacts examine(const OpSpec& spec, StringTable& forms) {
    SpecFacts facts;
    facts.communicates = find_op(spec.op).op_class == OpClass::kCommunication;
    if (!facts.communicates) {
      return facts;
    }
    facts.fault = spec_fault(program_, spec);
    if (facts.fault.empty()) {
      facts.sequence = sequence_of(spec);
      facts.form = forms.intern(form_of(spec, order_));
    }
    return facts;
  }

  uint32_t sequence_of(const OpSpec& spec) {
    const size_t group = group_of(program_, spec)->index();
    const CallKind kind = call_kind(spec);
    const bool is_message = kind != CallKind::kCollective;
    const int64_t peer = is_message ? *integer_attribute(spec, "peer") : -1;
    const int64_t channel =
        is_message && order_ == MessageOrder::kPerChannel ? channel_of(spec) : -1;
    if (use_of_group_[group] == kNone) {
      use_of_group_[group] = static_cast<uint32_t>(result_.groups.size());
      result_.groups.push_back({.group = GroupId(group)});
    }
    const uint32_t use = use_of_group_[group];
    result_.groups[use].has_messages |= is_message;
    const auto [found, is_new] = sequences_.try_emplace(
        std::tuple(use, kind, peer, channel), static_cast<uint32_t>(result_.sequences.size()));
    if (is_new) {
      result_.sequences.push_back(
          {.group = use, .kind = kind, .peer = peer, .channel = channel, .calls = {}});
    }
    return found->second;
  }

  void find_recorders() {
    for (size_t i = 0; i < program_.tasks.size(); ++i) {
      const EventId event = program_.tasks[i].record;
      if (event.value < result_.recorder.size()) {
        result_.recorder[event.index()] = static_cast<uint32_t>(i);
      }
    }
  }

  void visit(TaskId id) {
    const Task& task = program_.tasks[id.index()];
    const SpecFacts& spec = specs_[task.spec.index()];
    if (!spec.fault.empty()) {
      faults_.push_back(fmt::format("{}: {}", name(id), spec.fault));
      return;
    }
    for (const EventId event : program_.waits_of(task)) {
      if (event.value >= result_.recorder.size() || result_.recorder[event.index()] == kNone) {
        faults_.push_back(
            fmt::format("{} waits for event e{}, which no task records", name(id), event.value));
      }
    }
    if (!spec.communicates && !task.record.valid() && task.num_waits == 0) {
      return;
    }
    ProgramCalls::Step step{.task = id.value};
    if (spec.communicates) {
      step.call = static_cast<uint32_t>(result_.calls.size());
      result_.calls.push_back({.task = id, .sequence = spec.sequence, .form = spec.form});
      result_.sequences[spec.sequence].calls.push_back(step.call);
    }
    result_.streams[task.stream.index()].push_back(step);
  }

  std::string name(TaskId task) const {
    return fmt::format("rank {} {}", program_.rank, describe_call(program_, task));
  }

  const Program& program_;
  MessageOrder order_;
  std::vector<std::string>& faults_;
  ProgramCalls result_;
  std::vector<SpecFacts> specs_;
  std::vector<uint32_t> use_of_group_;
  std::map<std::tuple<uint32_t, CallKind, int64_t, int64_t>, uint32_t> sequences_;
};

StreamId stream_of(const ProgramCalls& calls, uint32_t call) {
  return calls.program->tasks[calls.calls[call].task.index()].stream;
}

/// True if calls may be unordered: the group has several ranks, and the calls are on several
/// streams.
bool may_be_unordered(const ProgramCalls& calls, const ProgramCalls::Sequence& sequence) {
  if (calls.group_of(sequence).ranks.size() < 2) {
    return false;
  }
  for (const uint32_t call : sequence.calls) {
    if (stream_of(calls, call) != stream_of(calls, sequence.calls.front())) {
      return true;
    }
  }
  return false;
}

}  // namespace

uint32_t StringTable::intern(const std::string& text) {
  const auto [found, is_new] = ids_.try_emplace(text, static_cast<uint32_t>(texts_.size()));
  if (is_new) {
    texts_.push_back(text);
  }
  return found->second;
}

std::string describe_call(const Program& program, TaskId task) {
  return fmt::format("task {} ({})", task.value, describe_task(program, task));
}

ProgramCalls find_calls(const Program& program, MessageOrder order, StringTable& forms,
                        StringTable& sites, std::vector<std::string>& faults) {
  ProgramCalls result = CallFinder(program, order, forms, faults).find();
  for (const std::string& site : program.sites) {
    result.sites.push_back(sites.intern(site));
  }
  return result;
}

void check_call_order(const ProgramCalls& calls, std::vector<std::string>& faults) {
  std::vector<bool> is_open(calls.sequences.size());  // by sequence: still to be checked
  bool any_open = false;
  for (size_t i = 0; i < calls.sequences.size(); ++i) {
    is_open[i] = may_be_unordered(calls, calls.sequences[i]);
    any_open |= is_open[i];
  }
  if (!any_open) {
    return;
  }
  const Program& program = *calls.program;
  HappensBefore order(program, Ordering::kEvents);
  std::vector<TaskId> last(calls.sequences.size());
  size_t next_call = 0;
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const TaskId task(i);
    order.start(task);
    if (next_call < calls.calls.size() && calls.calls[next_call].task == task) {
      const uint32_t sequence = calls.calls[next_call++].sequence;
      if (is_open[sequence] && last[sequence].valid() && !order.is_ordered(last[sequence].value)) {
        faults.push_back(fmt::format(
            "rank {}: {} and {} are calls in group {} in no order: they are on different streams, "
            "and no event is between them",
            program.rank, describe_call(program, last[sequence]), describe_call(program, task),
            calls.group_of(calls.sequences[sequence]).name));
        is_open[sequence] = false;  // one line per sequence is enough
      }
      last[sequence] = task;
    }
    order.finish(task);
  }
}

}  // namespace braid
