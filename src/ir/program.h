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

using TaskId =
    Id<struct TaskTag>;  ///< position in program order; a pass that reorders tasks renumbers them
using BufferId = Id<struct BufferTag>;
using StreamId = Id<struct StreamTag>;
using GroupId = Id<struct GroupTag>;
using EventId = Id<struct EventTag>;
using SiteId = Id<struct SiteTag>;

/// What a buffer holds. Memory is planned and reported per role.
enum class BufferRole : uint8_t {
  kParam,       ///< weights in compute dtype
  kMainWeight,  ///< fp32 copy of the weights if the compute dtype is narrower
  kGrad,        ///< gradient of a weight before it is added to the main grad
  kMainGrad,    ///< fp32 gradient accumulator across microbatches
  kOptimizerState,
  kActivation,  ///< forward values and the gradients with respect to them
  kGathered,    ///< unsharded copy of a tensor that is stored sharded
  kScratch,
  kIo,  ///< written or read by the host between steps
};

enum class Lifetime : uint8_t {
  kPersistent,  ///< keeps its contents from step to step
  kStep,        ///< undefined at the start of a step; shares memory with other step buffers
};

enum class Placement : uint8_t { kDevice, kHost };

/// Maximum number of elements of a buffer. It exceeds any real memory, and byte counts below it
/// cannot overflow.
inline constexpr int64_t kMaxElems = int64_t{1} << 56;

/// Returns true if no dimension is negative and the shape has at most kMaxElems elements.
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

/// A queue of tasks that run in order. Only events order tasks of different streams.
struct Stream {
  std::string name;
  StreamKind kind = StreamKind::kCompute;
  int priority = 0;  ///< higher runs first if the device supports priorities
  int left_sms = 0;  ///< multiprocessors that matrix products of a compute stream leave free

  friend bool operator==(const Stream&, const Stream&) = default;
};

/// The parallel dimension that a group communicates for.
enum class GroupKind : uint8_t { kData, kTensor, kPipeline, kContext, kExpert, kWorld };

/// Ranks that communicate with each other. `ranks` are global ranks in group order. A collective
/// runs over all of them.
struct Group {
  std::string name;
  GroupKind kind = GroupKind::kData;
  std::vector<int> ranks;
  /// Multiprocessors of a GPU that communication takes at most. 0: NCCL chooses, and exchanges of
  /// rows have ops/expert_exchange.h's number.
  int max_sms = 0;

  friend bool operator==(const Group&, const Group&) = default;
};

enum class Phase : uint8_t { kForward, kDgrad, kWgrad, kOptimizer, kComm };

/// Position of a task in the training step. -1 means that the field does not apply.
struct Label {
  Phase phase = Phase::kForward;
  int32_t microbatch = -1;
  int32_t virtual_stage = -1;
  int32_t layer = -1;
  SiteId site;  ///< place in the model, for example "attention.qkv"; indexes Program::sites

  friend bool operator==(const Label&, const Label&) = default;
};

/// One operation on buffer ranges. Its operands are Program::operands[operands_begin,
/// operands_begin + number of operands in the spec).
struct Task {
  SpecId spec;
  StreamId stream;
  uint32_t operands_begin = 0;
  EventId record;  ///< recorded on the task's stream when the task finishes; invalid if no task
                   ///< waits for it
  /// Events that the task waits for before it starts: Program::waits[waits_begin,
  /// waits_begin + num_waits).
  uint32_t waits_begin = 0;
  uint32_t num_waits = 0;
  Label label;
};

/// The training step of one rank. The order of `tasks` defines the result: it equals the result of
/// running the tasks one after another. Streams and events only say what may run concurrently.
/// Every dependency (RAW, WAR, WAW on buffer ranges) follows from the order, and `insert_events`
/// turns dependencies between streams into events. A program is a plain value: ids index vectors,
/// and programs are cheap to copy and compare.
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

  /// Compares meaning: ids of specs and sites, and unused specs and sites, make no difference.
  friend bool operator==(const Program& a, const Program& b);
};

/// Says why `range` cannot be an operand of type `spec`: the buffer does not exist, the range
/// exceeds it, or the dtype or element count differs. Empty if the range is valid. Requires valid
/// buffer shapes.
std::string operand_fault(const Program& program, const OperandSpec& spec,
                          const BufferRange& range);

/// Appends to a program and checks each addition: ranges lie inside their buffers, and element
/// counts and dtypes equal those of the spec. Throws InternalError that names the task otherwise.
class ProgramBuilder {
 public:
  ProgramBuilder(std::string name, int rank, int num_ranks);

  /// Reserves memory so that a large program is not reallocated as it grows. Optional.
  void reserve(size_t num_tasks, size_t num_operands, size_t num_buffers);

  BufferId add_buffer(Buffer buffer);
  StreamId add_stream(Stream stream);
  GroupId add_group(Group group);
  SiteId site(const std::string& name);  ///< interned

  /// The range of all elements of a buffer.
  BufferRange whole(BufferId buffer) const;
  TaskId add_task(const OpSpec& spec, std::span<const BufferRange> operands, StreamId stream,
                  const Label& label);

  const Program& program() const { return program_; }
  Program take() { return std::move(program_); }

 private:
  Program program_;
  std::unordered_map<std::string, SiteId> sites_;
};

/// The group named by the attribute "group" of a communication op. nullopt if the op has no such
/// attribute or the program has no such group.
std::optional<GroupId> group_of(const Program& program, const OpSpec& spec);

/// Returns the program with only these tasks, in this order. Each task may appear at most once.
/// Removes all events.
Program select_tasks(const Program& program, std::span<const TaskId> tasks);

/// Returns the program with its tasks in the order `order`, a permutation of task positions.
/// Removes all events.
Program reorder_tasks(const Program& program, std::span<const TaskId> order);

/// Removes all events and waits.
void clear_events(Program& program);

/// Describes a task for messages and traces, for example "linear layers.3 attention.qkv mb=0 vs=0".
std::string describe_task(const Program& program, TaskId task);

std::string_view role_name(BufferRole role);
std::string_view phase_name(Phase phase);
std::string_view stream_kind_name(StreamKind kind);
std::string_view group_kind_name(GroupKind kind);
std::string_view lifetime_name(Lifetime lifetime);
std::string_view placement_name(Placement placement);

}  // namespace braid
