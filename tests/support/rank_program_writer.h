#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ir/program.h"

namespace braid {

/// Writes the program of one rank, task by task, for tests of what ranks ask of each other. Every
/// task works on a part of one large buffer of its dtype.
class RankProgramWriter {
 public:
  RankProgramWriter(int rank, int num_ranks, const std::vector<std::string>& streams)
      : builder_("step", rank, num_ranks) {
    for (const std::string& name : streams) {
      builder_.add_stream({.name = name, .kind = StreamKind::kComm});
    }
    buffer_ = builder_.add_buffer({.name = "x",
                                   .dtype = DType::kF32,
                                   .shape = {kBufferElems},
                                   .role = BufferRole::kIo,
                                   .lifetime = Lifetime::kPersistent});
  }

  size_t add_group(const std::string& name, std::vector<int> ranks) {
    return builder_.add_group({.name = name, .ranks = std::move(ranks)}).index();
  }

  TaskId collective(const std::string& op, size_t group, int64_t elems, size_t stream,
                    const Label& label = {.phase = Phase::kComm}) {
    std::vector<Attribute> attributes{{"group", static_cast<int64_t>(group)}};
    if (op == "broadcast" || op == "reduce") {
      attributes.push_back({"root", int64_t{0}});
    } else if (op == "ring_shift") {
      attributes.push_back({"shift", int64_t{1}});
    }
    const auto members = static_cast<int64_t>(builder_.program().groups[group].ranks.size());
    const int64_t x = op == "reduce_scatter" || op == "all_to_all" ? members * elems : elems;
    const int64_t y = op == "all_gather" || op == "all_to_all" ? members * elems : elems;
    return add({op, std::move(attributes), {}}, {x, y}, stream, label);
  }

  struct Message {
    size_t group = 0;
    int64_t peer = 0;
    int64_t channel = 0;
    int64_t elems = 4;
  };
  TaskId send(const Message& message, size_t stream, const Label& label = {.phase = Phase::kComm}) {
    return add({"send", attributes_of_message(message), {}}, {message.elems}, stream, label);
  }
  TaskId recv(const Message& message, size_t stream, const Label& label = {.phase = Phase::kComm}) {
    return add({"recv", attributes_of_message(message), {}}, {message.elems}, stream, label,
               /*writes_first=*/true);
  }
  TaskId compute(size_t stream, const Label& label = {}) {
    return add({"copy", {}, {}}, {1, 1}, stream, label);
  }

  /// `waiting` starts after `recording` has finished; call it when all tasks are there.
  void wait(TaskId waiting, TaskId recording) { waits_.emplace_back(waiting, recording); }

  Program take() {
    Program program = builder_.take();
    std::sort(waits_.begin(), waits_.end());
    for (const auto& [waiting, recording] : waits_) {
      Task& recorder = program.tasks[recording.index()];
      if (!recorder.record.valid()) {
        recorder.record = EventId(program.num_events++);
      }
      Task& waiter = program.tasks[waiting.index()];
      if (waiter.num_waits == 0) {
        waiter.waits_begin = static_cast<uint32_t>(program.waits.size());
      }
      program.waits.push_back(recorder.record);
      ++waiter.num_waits;
    }
    return program;
  }

 private:
  static constexpr int64_t kBufferElems = 4096;

  static std::vector<Attribute> attributes_of_message(const Message& message) {
    return {{"group", static_cast<int64_t>(message.group)},
            {"peer", message.peer},
            {"channel", message.channel}};
  }

  TaskId add(OpSpec spec, const std::vector<int64_t>& elems, size_t stream, const Label& label,
             bool writes_first = false) {
    std::vector<BufferRange> ranges;
    for (size_t i = 0; i < elems.size(); ++i) {
      const bool writes = i > 0 || writes_first;
      spec.operands.push_back({DType::kF32, writes ? Access::kWrite : Access::kRead, {elems[i]}});
      ranges.push_back({buffer_, static_cast<int64_t>(i) * kBufferElems / 2,
                        static_cast<int64_t>(i) * kBufferElems / 2 + elems[i]});
    }
    return builder_.add_task(spec, ranges, StreamId(stream), label);
  }

  ProgramBuilder builder_;
  BufferId buffer_;
  std::vector<std::pair<TaskId, TaskId>> waits_;  // waiting, recording
};

}  // namespace braid
