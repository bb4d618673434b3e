#include "backends/copy_steps.h"

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "base/text.h"
#include "ops/collectives.h"
#include "ops/expert_exchange.h"

namespace braid {
namespace {

int64_t arrived_flag(int from) {
  return from;
}

int64_t credit_flag(int size, int from) {
  return int64_t{size} + from;
}

/// Emits the steps of one call.
class StepWriter {
 public:
  explicit StepWriter(const CopyShape& shape) : shape_(shape) {}

  std::vector<CopyStep> run() {
    if (shape_.block_bytes == 0) {
      return {};  // on all ranks
    }
    switch (shape_.op) {
      case CommOp::kAllGather:
      case CommOp::kAllToAll:
        rotate();
        break;
      case CommOp::kRingShift:
        shift();
        break;
      case CommOp::kDispatchRows:
      case CommOp::kCombineRows:
        exchange_rows();
        break;
      case CommOp::kSend:
        push_to(1);
        break;
      case CommOp::kRecv:
        signal(credit_flag(2, 1), 0);
        await(arrived_flag(0), 0);
        break;
      default:
        throw_internal_error("copies do not suffice for {}", comm_op_name(shape_.op));
    }
    return std::move(steps_);
  }

 private:
  int wrapped(int64_t place) const {
    const int64_t rest = place % shape_.size;
    return static_cast<int>(rest < 0 ? rest + shape_.size : rest);
  }

  void rotate() {
    for (int j = 1; j < shape_.size; ++j) {
      signal(credit_flag(shape_.size, shape_.place), wrapped(shape_.place - j));
    }
    keep(shape_.place);
    for (int j = 1; j < shape_.size; ++j) {
      push_to(wrapped(shape_.place + j));
      await(arrived_flag(wrapped(shape_.place - j)), wrapped(shape_.place - j));
    }
  }

  void shift() {
    const int to = wrapped(shape_.place + shape_.shift % shape_.size);
    const int from = wrapped(shape_.place - shape_.shift % shape_.size);
    if (to == shape_.place) {
      keep(shape_.place);
      return;
    }
    signal(credit_flag(shape_.size, shape_.place), from);
    push_to(to);
    await(arrived_flag(from), from);
  }

  void exchange_rows() {
    const auto for_others = [&](const auto& visit) {
      for (int j = 1; j < shape_.size; ++j) {
        visit(wrapped(shape_.place + j));
      }
    };
    for_others([&](int peer) { signal(credit_flag(shape_.size, shape_.place), peer); });
    for_others([&](int peer) { await(credit_flag(shape_.size, peer), peer); });
    steps_.push_back({.action = CopyAction::kFetchRows, .peer = shape_.place});
    for_others([&](int peer) { signal(arrived_flag(shape_.place), peer); });
    for_others([&](int peer) { await(arrived_flag(peer), peer); });
  }

  void signal(int64_t flag, int peer) {
    steps_.push_back({.action = CopyAction::kSignal, .peer = peer, .flag = flag});
  }
  void await(int64_t flag, int peer) {
    steps_.push_back({.action = CopyAction::kAwait, .peer = peer, .flag = flag});
  }

  void keep(int own) { add_copy(CopyAction::kKeep, own); }

  void push_to(int peer) {
    await(credit_flag(shape_.size, peer), peer);
    add_copy(CopyAction::kPush, peer);
    signal(arrived_flag(shape_.place), peer);
  }

  /// Copies block `peer` of x in an all-to-all, otherwise all of x; the destination is this rank's
  /// block if y has one per member.
  void add_copy(CopyAction action, int peer) {
    const bool exchanges = shape_.op == CommOp::kAllToAll;
    const bool collects = exchanges || shape_.op == CommOp::kAllGather;
    steps_.push_back({.action = action,
                      .peer = peer,
                      .from_bytes = exchanges ? peer * shape_.block_bytes : 0,
                      .to_bytes = collects ? shape_.place * shape_.block_bytes : 0,
                      .num_bytes = shape_.block_bytes});
  }

  CopyShape shape_;
  std::vector<CopyStep> steps_;
};

std::vector<size_t> reached_operands(const OpSpec& spec, const CommCall& call) {
  std::vector<size_t> reached;
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    const bool is_integer = call.exchanges_rows() && spec.operands[i].dtype == DType::kI32;
    const Access access = spec.operands[i].access;
    if (!is_integer && (call.exchanges_rows() ? reads(access) : writes(access))) {
      reached.push_back(i);
    }
  }
  return reached;
}

/// Members in group order; for a message the two ends.
std::vector<int> members_of(const CommCall& call, int rank) {
  if (!call.is_message()) {
    return call.group->ranks;
  }
  const int peer = call.group->ranks[static_cast<size_t>(call.peer)];
  return call.op == CommOp::kSend ? std::vector{rank, peer} : std::vector{peer, rank};
}

CopyShape shape_of(const CommCall& call, const std::vector<int>& members, int rank) {
  const auto found = std::ranges::find(members, rank);
  check(found != members.end(), "rank {} is not in group {}", rank, call.group->name);
  const int64_t elems = call.op == CommOp::kRecv ? call.recv_elems : call.send_elems;
  const int64_t bytes = elems * static_cast<int64_t>(dtype_bytes(call.dtype));
  const auto size = static_cast<int>(members.size());
  return {.op = call.op,
          .place = static_cast<int>(found - members.begin()),
          .size = size,
          .block_bytes = call.op == CommOp::kAllToAll ? bytes / size : bytes,
          .shift = call.shift};
}

CopyCall call_of(const Program& program, TaskId task) {
  const OpSpec& spec = program.spec(program.tasks[task.index()]);
  const auto group = group_of(program, spec);
  check(group.has_value(), "op {} has no group", spec.op);
  const std::vector<std::byte*> no_addresses(spec.operands.size(), nullptr);
  const CommCall call = make_comm_call(spec, program.groups[group->index()], no_addresses, spec.op);
  CopyCall made{.task = task, .ranks = members_of(call, program.rank)};
  made.shape = shape_of(call, made.ranks, program.rank);
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    made.send_operand = reads(spec.operands[i].access) ? i : made.send_operand;
  }
  made.reached_operands = reached_operands(spec, call);
  std::vector<std::string> ranks;
  for (const int rank : made.ranks) {
    ranks.push_back(std::to_string(rank));
  }
  made.name = fmt::format("{} {} of ranks {}", call.group->name,
                          call.is_message() ? fmt::format("channel {}", call.channel) : "calls",
                          join(ranks, ", "));
  return made;
}

}  // namespace

bool accesses_peers(const OpSpec& spec) {
  return is_by_copy_engine(spec) || exchanges_rows(spec);
}

std::vector<CopyStep> copy_steps(const CopyShape& shape) {
  return StepWriter(shape).run();
}

std::vector<CopyCall> find_copy_calls(std::span<const Program> programs) {
  std::vector<CopyCall> calls;
  std::map<std::string, int64_t> num_named;
  int64_t num_flags = 0;
  for (size_t i = 0; i < programs.size(); ++i) {
    const Program& program = programs[i];
    for (size_t task = 0; task < program.tasks.size(); ++task) {
      if (!accesses_peers(program.spec(program.tasks[task]))) {
        continue;
      }
      CopyCall call = call_of(program, TaskId(task));
      if (call.ranks.size() < 2) {
        continue;
      }
      call.program = i;
      call.name = fmt::format("program {}, {}", i, call.name);
      call.name += fmt::format(", number {}", num_named[call.name]++);
      call.first_flag = num_flags;
      num_flags += num_copy_flags(call.shape.size);
      calls.push_back(std::move(call));
    }
  }
  return calls;
}

}  // namespace braid
