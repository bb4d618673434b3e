#include "trace/timeline_json.h"

#include <nlohmann/json.hpp>

#include "trace/exposed.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

template <class Field>
Json column(const RankTimeline& rank, Field&& field) {
  Json values = Json::array();
  for (const TimelineTask& task : rank.tasks) {
    values.push_back(field(task));
  }
  return values;
}

Json streams_json(const RankTimeline& rank) {
  Json streams = Json::array();
  for (const Stream& stream : rank.streams) {
    streams.push_back({{"name", stream.name}, {"kind", stream_kind_name(stream.kind)}});
  }
  return streams;
}

Json rank_json(const RankTimeline& rank) {
  using Task = TimelineTask;
  Json json;
  json["rank"] = rank.rank;
  json["step"] = rank.step;
  json["streams"] = streams_json(rank);
  json["names"] = rank.names;
  json["stream"] = column(rank, [](const Task& task) { return task.stream; });
  json["name"] = column(rank, [](const Task& task) { return task.name; });
  json["start_ns"] = column(rank, [](const Task& task) { return task.start_ns; });
  json["duration_ns"] = column(rank, [](const Task& task) { return task.end_ns - task.start_ns; });
  json["phase"] = column(rank, [](const Task& task) { return static_cast<int>(task.phase); });
  json["microbatch"] = column(rank, [](const Task& task) { return task.microbatch; });
  json["virtual_stage"] = column(rank, [](const Task& task) { return task.virtual_stage; });
  json["layer"] = column(rank, [](const Task& task) { return task.layer; });
  json["bytes"] = column(rank, [](const Task& task) { return task.bytes; });
  json["group"] = column(rank, [](const Task& task) {
    return task.communication ? static_cast<int>(task.group) : -1;
  });
  return json;
}

/// In JSON, "<" stands only inside strings.
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
