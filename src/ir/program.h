#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/shape.h"
#include "ir/op_spec.h"

namespace braid {

using TaskId = Id<struct TaskTag>;  ///< position in program order; a pass that reorders renumbers
using BufferId = Id<struct BufferTag>;
using StreamId = Id<struct StreamTag>;
using GroupId = Id<struct GroupTag>;
using EventId = Id<struct EventTag>;
using SiteId = Id<struct SiteTag>;

/// What a buffer is for; the classes in which memory is planned and reported.
enum class BufferRole : uint8_t {
  kParam,       ///< weights in compute dtype
  kMainWeight,  ///< fp32 copy of the weights, where the compute dtype is narrower
  kGrad,        ///< gradient of a weight before it is added to the main grad
  kMainGrad,    ///< fp32 accumulator across microbatches
  kOptimizerState,
  kActivation,  ///< forward values, and gradients with respect to them
  kGathered,    ///< unsharded copy of something that is stored sharded
  kScratch,
  kIo,  ///< written or read by the host between steps
};

enum class Lifetime : uint8_t {
  kPersistent,  ///< keeps its content from step to step
  kStep,        ///< undefined at the start of a step; memory is shared with other step buffers
};

enum class Placement : uint8_t { kDevice, kHost };

/// Most elements that a buffer may have: far above any memory, far below overflow of a byte count.
inline constexpr int64_t kMaxElems = int64_t{1} << 56;

/// No dimension is negative, and there are at most kMaxElems elements.
bool is_valid_shape(const Shape& shape);

/// A dense row-major array. Tasks read and write ranges of its elements.
struct Buffer {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  BufferRole role = BufferRole::kActivation;
  Lifetime lifetime = Lifetime::kStep;
  Placement placement = Placement::kDevice;

  int64_t num_elems() const { return shape.num_elems(); }
  int64_t size_bytes() const { return num_elems() * static_cast<int64_t>(dtype_bytes(dtype)); }

  friend bool operator==(const Buffer&, const Buffer&) = default;
};

/// Elements [begin, end) of a buffer, counted in elements of its dtype, row-major.
struct BufferRange {
  BufferId buffer;
  int64_t begin = 0;
  int64_t end = 0;

  bool overlaps(const BufferRange& other) const {
    return buffer == other.buffer && begin < other.end && other.begin < end;
  }
  friend bool operator==(const BufferRange&, const BufferRange&) = default;
};

enum class StreamKind : uint8_t { kCompute, kComm, kCopy };

/// A queue of tasks that run in order. Tasks of different streams are ordered by events only.
struct Stream {
  std::string name;
  StreamKind kind = StreamKind::kCompute;
  int priority = 0;  ///< higher runs first where the device can choose

  friend bool operator==(const Stream&, const Stream&) = default;
};

/// The parallel dimension whose communication a group carries.
enum class GroupKind : uint8_t { kData, kTensor, kPipeline, kContext, kExpert, kWorld };

/// Ranks that communicate with each other. `ranks` are global and in group order; a task's
/// collective runs over all of them.
struct Group {
  std::string name;
  GroupKind kind = GroupKind::kData;
  std::vector<int> ranks;

  friend bool operator==(const Group&, const Group&) = default;
};

enum class Phase : uint8_t { kForward, kDgrad, kWgrad, kOptimizer, kComm };

/// Where in the training step a task belongs. -1: does not apply.
struct Label {
  Phase phase = Phase::kForward;
  int32_t microbatch = -1;
  int32_t virtual_stage = -1;
  int32_t layer = -1;
  SiteId site;  ///< place in the model, for example "attention.qkv": an index into Program::sites

  friend bool operator==(const Label&, const Label&) = default;
};

/// One operation on buffer ranges. Its operands are Program::operands[operands_begin, + number of
/// spec operands).
struct Task {
  SpecId spec;
  StreamId stream;
  uint32_t operands_begin = 0;
  EventId record;  ///< recorded on the task's stream when the task has finished; invalid: nobody
                   ///< waits for it
  uint32_t waits_begin =
      0;  ///< events the task waits for before it starts: Program::waits[waits_begin, + num_waits)
  uint32_t num_waits = 0;
  Label label;
};

/// The training step of one rank. The order of `tasks` is the meaning: the result is that of
/// running them one after the other. Streams and events only say what may run at the same time;
/// every dependency (RAW, WAR, WAW on buffer ranges) follows from the order, and `insert_events`
/// turns those between streams into events. A plain value: ids index vectors, copies are deep and
/// cheap to compare.
struct Program {
  std::string name = "step";
  int rank = 0;
  int num_ranks = 1;
  std::vector<Buffer> buffers;
  std::vector<Stream> streams;
  std::vector<Group> groups;
  std::vector<std::string> sites;
  SpecTable specs;
  std::vector<Task> tasks;
  std::vector<BufferRange> operands;
  std::vector<EventId> waits;
  uint32_t num_events = 0;

  const OpSpec& spec(const Task& task) const { return specs[task.spec]; }
  std::span<const BufferRange> operands_of(const Task& task) const {
    return {operands.data() + task.operands_begin, spec(task).operands.size()};
  }
  std::span<const EventId> waits_of(const Task& task) const {
    return {waits.data() + task.waits_begin, task.num_waits};
  }

  /// Equal in meaning: ids of specs and sites, and unused specs and sites, make no difference.
  friend bool operator==(const Program& a, const Program& b);
};

/// Why `range` cannot be an operand of type `spec`: no such buffer, outside of it, other dtype,
/// other element count. Empty if it can. The shapes of buffers must be valid.
std::string operand_fault(const Program& program, const OperandSpec& spec,
                          const BufferRange& range);

/// Appends to a program and checks each piece as it comes: ranges inside their buffers, element
/// counts and dtypes equal to the spec's. Throws InternalError naming the task otherwise.
class ProgramBuilder {
 public:
  ProgramBuilder(std::string name, int rank, int num_ranks);

  /// Makes room, so that a large program does not copy itself as it grows. Optional.
  void reserve(size_t num_tasks, size_t num_operands, size_t num_buffers);

  BufferId add_buffer(Buffer buffer);
  StreamId add_stream(Stream stream);
  GroupId add_group(Group group);
  SiteId site(const std::string& name);  ///< interned

  /// All elements of a buffer.
  BufferRange whole(BufferId buffer) const;
  TaskId add_task(const OpSpec& spec, std::span<const BufferRange> operands, StreamId stream,
                  const Label& label);

  const Program& program() const { return program_; }
  Program take() { return std::move(program_); }

 private:
  Program program_;
  std::unordered_map<std::string, SiteId> sites_;
};

/// The group that the attribute "group" of a communication op names; nullopt if it has none, or
/// names none of this program.
std::optional<GroupId> group_of(const Program& program, const OpSpec& spec);

/// The program with only these tasks, in this order, each at most once. Events are dropped.
Program select_tasks(const Program& program, std::span<const TaskId> tasks);

/// The same program with its tasks in the order `order` (a permutation of task positions). Events
/// are dropped.
Program reorder_tasks(const Program& program, std::span<const TaskId> order);

/// Removes all events and waits.
void clear_events(Program& program);

/// "linear layers.3 attention.qkv mb=0 vs=0": names a task in messages and traces.
std::string describe_task(const Program& program, TaskId task);

std::string_view role_name(BufferRole role);
std::string_view phase_name(Phase phase);
std::string_view stream_kind_name(StreamKind kind);
std::string_view group_kind_name(GroupKind kind);
std::string_view lifetime_name(Lifetime lifetime);
std::string_view placement_name(Placement placement);

}  // namespace braid
