#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "ir/program.h"
#include "ir/verify.h"
#include "passes/streams/insert_events.h"

namespace braid {

/// Builds small f32 programs of fill, copy, add and all_reduce for tests of executors.
class StepProgram {
 public:
  explicit StepProgram(int rank = 0, int num_ranks = 1) : builder_("step", rank, num_ranks) {}

  StreamId stream(std::string name, StreamKind kind = StreamKind::kCompute) {
    return builder_.add_stream({std::move(name), kind, 0});
  }
  GroupId group(std::string name, std::vector<int> ranks) {
    return builder_.add_group({std::move(name), GroupKind::kData, std::move(ranks)});
  }
  BufferId step(std::string name, int64_t num_elems) {
    return buffer(std::move(name), num_elems, Lifetime::kStep);
  }
  BufferId persistent(std::string name, int64_t num_elems) {
    return buffer(std::move(name), num_elems, Lifetime::kPersistent);
  }
  /// A step buffer in host memory.
  BufferId on_host(std::string name, int64_t num_elems) {
    return buffer(std::move(name), num_elems, Lifetime::kStep, Placement::kHost);
  }
  SiteId site(const std::string& name) { return builder_.site(name); }

  TaskId fill(StreamId on, BufferId y, double value, const Label& label = {}) {
    const OpSpec spec{"fill", {{"value", value}}, {operand(y, Access::kWrite)}};
    return task(spec, std::array{builder_.whole(y)}, on, label);
  }
  TaskId copy(StreamId on, BufferId x, BufferId y, const Label& label = {}) {
    const OpSpec spec{"copy", {}, {operand(x, Access::kRead), operand(y, Access::kWrite)}};
    return task(spec, std::array{builder_.whole(x), builder_.whole(y)}, on, label);
  }
  TaskId undefine(StreamId on, BufferId y) {
    const OpSpec spec{"undefine", {}, {operand(y, Access::kWrite)}};
    return task(spec, std::array{builder_.whole(y)}, on, {});
  }
  TaskId add(StreamId on, BufferId a, BufferId b, BufferId c, const Label& label = {}) {
    const OpSpec spec{
        "add",
        {},
        {operand(a, Access::kRead), operand(b, Access::kRead), operand(c, Access::kWrite)}};
    return task(spec, std::array{builder_.whole(a), builder_.whole(b), builder_.whole(c)}, on,
                label);
  }
  TaskId all_reduce(StreamId on, GroupId group, BufferId x, Label label = {}) {
    label.phase = Phase::kComm;
    const OpSpec spec{"all_reduce",
                      {{"group", static_cast<int64_t>(group.index())}},
                      {operand(x, Access::kReadWrite)}};
    return task(spec, std::array{builder_.whole(x)}, on, label);
  }

  /// With its events, and verified.
  Program finish() {
    Program program = insert_events(builder_.take()).program;
    verify_or_throw(program, "StepProgram");
    return program;
  }

 private:
  BufferId buffer(std::string name, int64_t num_elems, Lifetime lifetime,
                  Placement placement = Placement::kDevice) {
    return builder_.add_buffer(
        {std::move(name), DType::kF32, {num_elems}, BufferRole::kActivation, lifetime, placement});
  }
  OperandSpec operand(BufferId id, Access access) const {
    return {DType::kF32, access, builder_.program().buffers[id.index()].shape};
  }
  TaskId task(const OpSpec& spec, std::span<const BufferRange> ranges, StreamId on,
              const Label& label) {
    return builder_.add_task(spec, ranges, on, label);
  }

  ProgramBuilder builder_;
};

}  // namespace braid
