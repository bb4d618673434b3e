#include "trace/timeline_json.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "trace/exposed.h"
#include "trace/packed_column.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

/// The column of one field of `items`.
template <class Item, class Field>
Json column(const std::vector<Item>& items, Field&& field) {
  std::vector<int64_t> values;
  values.reserve(items.size());
  for (const Item& item : items) {
    values.push_back(static_cast<int64_t>(field(item)));
  }
  return packed_column(values);
}

Json streams_json(const RankTimeline& rank) {
  Json streams = Json::array();
  for (const Stream& stream : rank.streams) {
    streams.push_back({{"name", stream.name}, {"kind", stream_kind_name(stream.kind)}});
  }
  return streams;
}

Json kernels_json(const RankTimeline& rank) {
  using Kernel = TimelineKernel;
  const std::vector<Kernel>& kernels = rank.kernels;
  Json json;
  json["task"] = column(kernels, [](const Kernel& kernel) {
    return kernel.task == Kernel::kNoTask ? -1 : static_cast<int64_t>(kernel.task);
  });
  json["name"] = column(kernels, [](const Kernel& kernel) { return kernel.name; });
  json["start_ns"] = column(kernels, [](const Kernel& kernel) { return kernel.start_ns; });
  json["duration_ns"] =
      column(kernels, [](const Kernel& kernel) { return kernel.end_ns - kernel.start_ns; });
  return json;
}

Json rank_json(const RankTimeline& rank) {
  using Task = TimelineTask;
  Json json;
  json["rank"] = rank.rank;
  json["step"] = rank.step;
  json["streams"] = streams_json(rank);
  json["names"] = rank.names;
  json["stream"] = column(rank.tasks, [](const Task& task) { return task.stream; });
  json["name"] = column(rank.tasks, [](const Task& task) { return task.name; });
  json["start_ns"] = column(rank.tasks, [](const Task& task) { return task.start_ns; });
  json["duration_ns"] =
      column(rank.tasks, [](const Task& task) { return task.end_ns - task.start_ns; });
  json["phase"] = column(rank.tasks, [](const Task& task) { return static_cast<int>(task.phase); });
  json["microbatch"] = column(rank.tasks, [](const Task& task) { return task.microbatch; });
  json["virtual_stage"] = column(rank.tasks, [](const Task& task) { return task.virtual_stage; });
  json["layer"] = column(rank.tasks, [](const Task& task) { return task.layer; });
  json["bytes"] = column(rank.tasks, [](const Task& task) { return task.bytes; });
  json["group"] = column(rank.tasks, [](const Task& task) {
    return task.communication ? static_cast<int>(task.group) : -1;
  });
  json["wait_ns"] = column(rank.tasks, [](const Task& task) { return task.wait_ns; });
  json["remark"] = rank.remark;
  json["kernel_names"] = rank.kernel_names;
  json["kernels"] = kernels_json(rank);
  return json;
}

/// In JSON, "<" occurs only inside strings.
std::string escape_for_script(const std::string& json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string timeline_json(const Timeline& timeline) {
  Json json;
  json["source"] = timeline.source;
  json["step_ns"] = step_time_ns(timeline);
  for (size_t phase = 0; phase < kNumPhases; ++phase) {
    json["phases"].push_back(phase_name(static_cast<Phase>(phase)));
  }
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    json["groups"].push_back(group_kind_name(static_cast<GroupKind>(kind)));
  }
  json["ranks"] = Json::array();
  for (const RankTimeline& rank : timeline.ranks) {
    json["ranks"].push_back(rank_json(rank));
  }
  return escape_for_script(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace braid
