#include "passes/assign_streams.h"

#include <fmt/core.h>

#include <algorithm>

namespace braid {
namespace {

std::string stream_name(const Program& program, const OpSpec& spec) {
  const std::optional<GroupId> group = group_of(program, spec);
  return group ? fmt::format("comm.{}", group_kind_name(program.groups[group->index()].kind))
               : "comm";
}

/// The communication stream of that name, made if missing.
StreamId comm_stream(Program& program, std::string name, int priority) {
  const auto found = std::ranges::find_if(program.streams, [&](const Stream& stream) {
    return stream.kind == StreamKind::kComm && stream.name == name;
  });
  if (found != program.streams.end()) {
    return StreamId(static_cast<size_t>(found - program.streams.begin()));
  }
  program.streams.push_back({std::move(name), StreamKind::kComm, priority});
  return StreamId(program.streams.size() - 1);
}

}  // namespace

PassResult assign_streams(Program program, const AssignStreamsOptions& options) {
  std::vector<StreamId> stream_of_spec(program.specs.size());
  int64_t num_comm = 0;
  int64_t num_moved = 0;
  for (Task& task : program.tasks) {
    if (task.label.phase != Phase::kComm) {
      continue;
    }
    StreamId& stream = stream_of_spec[task.spec.index()];
    if (!stream.valid()) {
      stream =
          comm_stream(program, stream_name(program, program.spec(task)), options.comm_priority);
    }
    ++num_comm;
    num_moved += task.stream != stream ? 1 : 0;
    task.stream = stream;
  }
  if (num_moved > 0) {
    clear_events(program);
  }
  return {std::move(program),
          {num_moved > 0, num_moved,
           fmt::format("moved {} of {} communication tasks to streams of their own", num_moved,
                       num_comm)}};
}

}  // namespace braid
