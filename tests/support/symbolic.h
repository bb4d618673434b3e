#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "ir/program.h"
#include "ops/op.h"

namespace braid {

/// What each element of each buffer holds at the end, as a hash of how it came about: two programs
/// with equal states compute the same from the same start, whatever the ops do. A copy moves
/// values, also from or to the host, and an all-reduce over one rank keeps them; every other
/// written element is hash(op, operand, element, all values read), of activation functions hash(op,
/// element of the row, all values of the row that it reads). What a ReplayRule promises
/// holds: the results of such an op are, but for the one that the replay reads, those of the
/// replay. What `undefine` has touched is kUndefined until it is written again.
using SymbolicState = std::vector<std::vector<uint64_t>>;

inline constexpr uint64_t kUndefined = 0;

inline uint64_t mix_hash(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15u + b;  // splitmix64
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

inline SymbolicState initial_state(const Program& program) {
  SymbolicState state(program.buffers.size());
  for (size_t b = 0; b < state.size(); ++b) {
    state[b].resize(static_cast<size_t>(program.buffers[b].num_elems()));
    for (size_t i = 0; i < state[b].size(); ++i) {
      state[b][i] = mix_hash(b + 1, i + 1);
    }
  }
  return state;
}

inline bool keeps_values(const Program& program, const OpSpec& spec) {
  const auto group = group_of(program, spec);
  return spec.op == "all_reduce" && group && program.groups[group->index()].ranks.size() == 1;
}

/// The replay of a task that has one; ops of made-up names have none.
inline std::optional<Replay> known_replay(const OpSpec& spec) {
  return find_known_op(spec.op) == nullptr ? std::nullopt : find_replay(spec);
}

inline bool is_by_row(const OpSpec& spec) {
  return spec.op.starts_with("swiglu") || spec.op.starts_with("gelu");
}

/// Each row of the last operand, which is all that is written, of that row of the others.
inline void run_by_row(OpSpec spec, std::span<const BufferRange> operands, SymbolicState& state) {
  const int64_t rows = spec.operands[0].shape[0];
  for (OperandSpec& operand : spec.operands) {
    operand.shape[0] = 1;
  }
  const auto row_of = [&](const BufferRange& range, int64_t row) {
    const int64_t width = (range.end - range.begin) / rows;
    return std::span(state[range.buffer.index()])
        .subspan(static_cast<size_t>(range.begin + row * width), static_cast<size_t>(width));
  };
  for (int64_t row = 0; row < rows; ++row) {
    uint64_t seen = hash_value(spec);
    for (const BufferRange& range : operands.first(operands.size() - 1)) {
      for (const uint64_t value : row_of(range, row)) {
        seen = mix_hash(seen, value);
      }
    }
    for (uint64_t& value : row_of(operands.back(), row)) {
      value = seen = mix_hash(seen, 1);
    }
  }
}

inline void run_operation(const OpSpec& spec, std::span<const BufferRange> operands,
                          SymbolicState& state) {
  const auto values_of = [&](const BufferRange& range) {
    return std::span(state[range.buffer.index()])
        .subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin));
  };
  if (spec.op == "copy" || spec.op == "offload" || spec.op == "reload") {
    const auto source = values_of(operands[0]);
    const std::vector<uint64_t> values(source.begin(), source.end());
    std::ranges::copy(values, values_of(operands[1]).begin());
    return;
  }
  if (spec.op == "undefine") {
    std::ranges::fill(values_of(operands[0]), kUndefined);
    return;
  }
  if (spec.op == "await") {
    return;
  }
  if (is_by_row(spec)) {
    run_by_row(spec, operands, state);
    return;
  }
  uint64_t seen = hash_value(spec);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (reads(spec.operands[i].access)) {
      for (const uint64_t value : values_of(operands[i])) {
        seen = mix_hash(seen, value);
      }
    }
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    if (writes(spec.operands[i].access)) {
      uint64_t index = 0;
      for (uint64_t& value : values_of(operands[i])) {
        value = mix_hash(mix_hash(seen, i), ++index);
      }
    }
  }
  if (const std::optional<Replay> replay = known_replay(spec)) {
    std::vector<BufferRange> replayed;
    for (const size_t position : replay->operands) {
      replayed.push_back(operands[position]);
    }
    run_operation(replay->spec, replayed, state);
  }
}

inline void run_task(const Program& program, const Task& task, SymbolicState& state) {
  const OpSpec& spec = program.spec(task);
  if (!keeps_values(program, spec)) {
    run_operation(spec, program.operands_of(task), state);
  }
}

/// Runs the tasks one after the other: the meaning of the program.
inline SymbolicState run_in_order(const Program& program) {
  SymbolicState state = initial_state(program);
  for (const Task& task : program.tasks) {
    run_task(program, task, state);
  }
  return state;
}

/// `result` with what is undefined in it, at the end of a step and in step buffers alone, as in
/// `meaning`: where nobody reads any more, a pass may undefine what the program before has left.
inline SymbolicState defined_like(const Program& program, SymbolicState result,
                                  const SymbolicState& meaning) {
  for (size_t b = 0; b < meaning.size(); ++b) {
    for (size_t i = 0; i < meaning[b].size(); ++i) {
      if (result[b][i] == kUndefined && program.buffers[b].lifetime == Lifetime::kStep) {
        result[b][i] = meaning[b][i];
      }
    }
  }
  return result;
}

/// Runs the tasks in a random order among those that streams and events permit: what an executor
/// may do.
inline SymbolicState run_interleaved(const Program& program, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<size_t>> queues(program.streams.size());
  for (size_t i = program.tasks.size(); i-- > 0;) {
    queues[program.tasks[i].stream.index()].push_back(i);  // the next task is the last
  }
  std::vector<bool> is_recorded(program.num_events);
  SymbolicState state = initial_state(program);
  for (size_t done = 0; done < program.tasks.size();) {
    auto& queue = queues[random() % queues.size()];
    if (queue.empty()) {
      continue;
    }
    const Task& task = program.tasks[queue.back()];
    if (!std::ranges::all_of(program.waits_of(task),
                             [&](EventId event) { return is_recorded[event.index()]; })) {
      continue;
    }
    run_task(program, task, state);
    if (task.record.valid()) {
      is_recorded[task.record.index()] = true;
    }
    queue.pop_back();
    ++done;
  }
  return state;
}

/// Every persistent element is what it was, each hashed on its own, with the tasks in their order.
inline bool computes_the_same(const Program& before, const Program& after) {
  const SymbolicState a = run_in_order(before);
  const SymbolicState b = run_in_order(after);
  for (size_t i = 0; i < before.buffers.size(); ++i) {
    if (before.buffers[i].lifetime == Lifetime::kPersistent && a[i] != b[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace braid
