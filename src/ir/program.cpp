#include "ir/program.h"

#include <algorithm>
#include <array>

#include "base/errors.h"

namespace braid {
namespace {

template <class Enum, size_t kCount>
std::string_view name_in(const std::array<std::string_view, kCount>& names, Enum value) {
  const auto index = static_cast<size_t>(value);
  check(index < kCount, "enumerator {} has no name", index);
  return names[index];
}

std::string describe(const Program& program, std::string_view op, const Label& label) {
  std::string text(op);
  if (label.layer >= 0) {
    text += fmt::format(" layers.{}", label.layer);
  }
  if (label.site.value < program.sites.size()) {
    text += " " + program.sites[label.site.index()];
  }
  if (label.microbatch >= 0) {
    text += fmt::format(" mb={}", label.microbatch);
  }
  if (label.virtual_stage >= 0) {
    text += fmt::format(" vs={}", label.virtual_stage);
  }
  return text;
}

bool same_label(const Program& a, const Label& label_a, const Program& b, const Label& label_b) {
  const auto site = [](const Program& program, SiteId id) -> const std::string* {
    return id.value < program.sites.size() ? &program.sites[id.index()] : nullptr;
  };
  const std::string* site_a = site(a, label_a.site);
  const std::string* site_b = site(b, label_b.site);
  if ((site_a == nullptr) != (site_b == nullptr)) {
    return false;
  }
  const bool same_site = site_a == nullptr ? label_a.site == label_b.site : *site_a == *site_b;
  return same_site && label_a.phase == label_b.phase && label_a.microbatch == label_b.microbatch &&
         label_a.virtual_stage == label_b.virtual_stage && label_a.layer == label_b.layer;
}

bool same_task(const Program& a, const Task& task_a, const Program& b, const Task& task_b) {
  return task_a.stream == task_b.stream && task_a.record == task_b.record &&
         std::ranges::equal(a.waits_of(task_a), b.waits_of(task_b)) &&
         a.spec(task_a) == b.spec(task_b) &&
         std::ranges::equal(a.operands_of(task_a), b.operands_of(task_b)) &&
         same_label(a, task_a.label, b, task_b.label);
}

}  // namespace

bool is_valid_shape(const Shape& shape) {
  int64_t product = 1;
  for (const int64_t dim : shape) {
    // Count a zero dimension as 1: the product of the other dimensions must not overflow either.
    if (dim < 0 || std::max<int64_t>(dim, 1) > kMaxElems / product) {
      return false;
    }
    product *= std::max<int64_t>(dim, 1);
  }
  return true;
}

bool operator==(const Program& a, const Program& b) {
  return a.name == b.name && a.rank == b.rank && a.num_ranks == b.num_ranks &&
         a.num_events == b.num_events && a.buffers == b.buffers && a.streams == b.streams &&
         a.groups == b.groups &&
         std::ranges::equal(a.tasks, b.tasks, [&](const Task& task_a, const Task& task_b) {
           return same_task(a, task_a, b, task_b);
         });
}

std::string operand_fault(const Program& program, const OperandSpec& spec,
                          const BufferRange& range) {
  if (range.buffer.value >= program.buffers.size()) {
    return fmt::format("buffer #{} does not exist", range.buffer.value);
  }
  const Buffer& buffer = program.buffers[range.buffer.index()];
  if (range.begin < 0 || range.begin > range.end || range.end > buffer.num_elems()) {
    return fmt::format("range [{}:{}] is not inside buffer {} of {} elements", range.begin,
                       range.end, buffer.name, buffer.num_elems());
  }
  if (spec.dtype != buffer.dtype) {
    return fmt::format("dtype {} is not that of buffer {}, {}", dtype_name(spec.dtype), buffer.name,
                       dtype_name(buffer.dtype));
  }
  if (!is_valid_shape(spec.shape) || spec.shape.num_elems() != range.end - range.begin) {
    return fmt::format("shape {} does not have the {} elements of range [{}:{}] of buffer {}",
                       to_string(spec.shape), range.end - range.begin, range.begin, range.end,
                       buffer.name);
  }
  return {};
}

ProgramBuilder::ProgramBuilder(std::string name, int rank, int num_ranks) {
  check(rank >= 0 && rank < num_ranks, "program {}: rank {} is not one of {} ranks", name, rank,
        num_ranks);
  program_.name = std::move(name);
  program_.rank = rank;
  program_.num_ranks = num_ranks;
}

void ProgramBuilder::reserve(size_t num_tasks, size_t num_operands, size_t num_buffers) {
  program_.tasks.reserve(num_tasks);
  program_.operands.reserve(num_operands);
  program_.buffers.reserve(num_buffers);
}

BufferId ProgramBuilder::add_buffer(Buffer buffer) {
  check(is_valid_shape(buffer.shape), "buffer {}: shape {} is negative or too large", buffer.name,
        to_string(buffer.shape));
  program_.buffers.push_back(std::move(buffer));
  return BufferId(program_.buffers.size() - 1);
}

StreamId ProgramBuilder::add_stream(Stream stream) {
  program_.streams.push_back(std::move(stream));
  return StreamId(program_.streams.size() - 1);
}

GroupId ProgramBuilder::add_group(Group group) {
  check(!group.ranks.empty(), "group {} has no ranks", group.name);
  for (const int rank : group.ranks) {
    check(rank >= 0 && rank < program_.num_ranks, "group {}: rank {} is not one of {} ranks",
          group.name, rank, program_.num_ranks);
  }
  program_.groups.push_back(std::move(group));
  return GroupId(program_.groups.size() - 1);
}

SiteId ProgramBuilder::site(const std::string& name) {
  const auto [entry, is_new] = sites_.try_emplace(name, program_.sites.size());
  if (is_new) {
    program_.sites.push_back(name);
  }
  return entry->second;
}

BufferRange ProgramBuilder::whole(BufferId buffer) const {
  check(buffer.value < program_.buffers.size(), "buffer #{} does not exist", buffer.value);
  return {buffer, 0, program_.buffers[buffer.index()].num_elems()};
}

TaskId ProgramBuilder::add_task(const OpSpec& spec, std::span<const BufferRange> operands,
                                StreamId stream, const Label& label) {
  const auto name = [&] { return describe(program_, spec.op, label); };
  if (stream.value >= program_.streams.size()) {
    throw_internal_error("{}: stream #{} does not exist", name(), stream.value);
  }
  if (label.site.valid() && label.site.value >= program_.sites.size()) {
    throw_internal_error("{}: site #{} does not exist", name(), label.site.value);
  }
  if (operands.size() != spec.operands.size()) {
    throw_internal_error("{}: {} operands, but its spec has {}", name(), operands.size(),
                         spec.operands.size());
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    if (const std::string fault = operand_fault(program_, spec.operands[i], operands[i]);
        !fault.empty()) {
      throw_internal_error("{}: operand {}: {}", name(), i, fault);
    }
  }
  Task task;
  task.spec = program_.specs.intern(spec);
  task.stream = stream;
  task.operands_begin = static_cast<uint32_t>(program_.operands.size());
  task.label = label;
  program_.operands.insert(program_.operands.end(), operands.begin(), operands.end());
  program_.tasks.push_back(task);
  return TaskId(program_.tasks.size() - 1);
}

std::optional<GroupId> group_of(const Program& program, const OpSpec& spec) {
  const AttributeValue* value = spec.find_attribute("group");
  const int64_t* index = value == nullptr ? nullptr : std::get_if<int64_t>(value);
  if (index == nullptr || *index < 0 || *index >= static_cast<int64_t>(program.groups.size())) {
    return std::nullopt;
  }
  return GroupId(static_cast<size_t>(*index));
}

Program select_tasks(const Program& program, std::span<const TaskId> tasks) {
  Program result;
  result.name = program.name;
  result.rank = program.rank;
  result.num_ranks = program.num_ranks;
  result.buffers = program.buffers;
  result.streams = program.streams;
  result.groups = program.groups;
  result.sites = program.sites;
  result.specs = program.specs;
  result.tasks.reserve(tasks.size());
  result.operands.reserve(program.operands.size());
  std::vector<bool> selected(program.tasks.size());
  for (const TaskId id : tasks) {
    check(id.value < selected.size() && !selected[id.index()],
          "task #{} does not exist or is selected twice", id.value);
    selected[id.index()] = true;
    Task task = program.tasks[id.index()];
    const auto operands = program.operands_of(task);
    task.operands_begin = static_cast<uint32_t>(result.operands.size());
    task.record = EventId();
    task.waits_begin = 0;
    task.num_waits = 0;
    result.operands.insert(result.operands.end(), operands.begin(), operands.end());
    result.tasks.push_back(task);
  }
  return result;
}

Program reorder_tasks(const Program& program, std::span<const TaskId> order) {
  check(order.size() == program.tasks.size(), "an order of {} tasks for a program of {}",
        order.size(), program.tasks.size());
  return select_tasks(program, order);
}

void clear_events(Program& program) {
  for (Task& task : program.tasks) {
    task.record = EventId();
    task.waits_begin = 0;
    task.num_waits = 0;
  }
  program.waits.clear();
  program.num_events = 0;
}

std::string describe_task(const Program& program, TaskId task) {
  check(task.value < program.tasks.size(), "task #{} does not exist", task.value);
  const Task& it = program.tasks[task.index()];
  const bool known = it.spec.value < program.specs.size();
  return describe(program, known ? program.spec(it).op : "(unknown op)", it.label);
}

std::string_view role_name(BufferRole role) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "param",      "main_weight", "grad",    "main_grad", "optimizer_state",
      "activation", "gathered",    "scratch", "io"};
  return name_in(kNames, role);
}

std::string_view phase_name(Phase phase) {
  static constexpr std::array<std::string_view, 5> kNames = {"forward", "dgrad", "wgrad",
                                                             "optimizer", "comm"};
  return name_in(kNames, phase);
}

std::string_view stream_kind_name(StreamKind kind) {
  static constexpr std::array<std::string_view, 3> kNames = {"compute", "comm", "copy"};
  return name_in(kNames, kind);
}

std::string_view group_kind_name(GroupKind kind) {
  static constexpr std::array<std::string_view, 6> kNames = {"data",    "tensor", "pipeline",
                                                             "context", "expert", "world"};
  return name_in(kNames, kind);
}

std::string_view lifetime_name(Lifetime lifetime) {
  static constexpr std::array<std::string_view, 2> kNames = {"persistent", "step"};
  return name_in(kNames, lifetime);
}

std::string_view placement_name(Placement placement) {
  static constexpr std::array<std::string_view, 2> kNames = {"device", "host"};
  return name_in(kNames, placement);
}

}  // namespace braid
