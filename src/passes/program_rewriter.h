#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "ir/program.h"
#include "ops/offload.h"

namespace braid {

/// Writes a new program task by task. It starts with the buffers, streams, groups and sites of
/// `from`, and has no events. `from` must outlive it.
class ProgramRewriter {
 public:
  explicit ProgramRewriter(const Program& from) : from_(from), result_(select_tasks(from, {})) {
    result_.tasks.reserve(from.tasks.size());
    result_.operands.reserve(from.operands.size());
  }

  /// Appends a task of `from`.
  void append(TaskId task) {
    const Task& it = from_.tasks[task.index()];
    write(it.spec, from_.operands_of(it), it);
  }

  /// Appends a new task on the stream and with the label of `like`.
  void append(const OpSpec& spec, std::span<const BufferRange> ranges, const Task& like) {
    write(result_.specs.intern(spec), ranges, like);
  }

  /// Appends an `undefine` of the whole buffer, on the stream and with the label of `like`.
  void append_undefine(BufferId buffer, const Task& like) {
    const Buffer& whole = from_.buffers[buffer.index()];
    append(undefine_spec(whole), std::array{BufferRange{buffer, 0, whole.num_elems()}}, like);
  }

  /// Adds a buffer that `from` does not have.
  BufferId add_buffer(Buffer buffer) {
    result_.buffers.push_back(std::move(buffer));
    return BufferId(result_.buffers.size() - 1);
  }

  Program take() { return std::move(result_); }

 private:
  void write(SpecId spec, std::span<const BufferRange> ranges, Task task) {
    task.spec = spec;
    task.operands_begin = static_cast<uint32_t>(result_.operands.size());
    task.record = EventId();
    task.waits_begin = 0;
    task.num_waits = 0;
    result_.operands.insert(result_.operands.end(), ranges.begin(), ranges.end());
    result_.tasks.push_back(task);
  }

  const Program& from_;
  Program result_;
};

}  // namespace braid
