#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "sim/profile.h"
#include "sim/profile_format.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

/// JSON in one line; invalid UTF-8 is replaced, since names come from drivers.
std::string one_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void add_timing(Json& json, const Timing& timing) {
  json["ns"] = timing.ns;
  json["spread"] = timing.spread;
}

Json attributes_json(const OpSpec& spec) {
  Json json = Json::object();
  for (const Attribute& attribute : spec.attributes) {
    std::visit([&](const auto& value) { json[attribute.name] = value; }, attribute.value);
  }
  return json;
}

Json task_json(const TaskPoint& point) {
  Json json;
  for (const OperandSpec& operand : point.spec.operands) {
    json["operands"].push_back(print_operand_spec(operand));
  }
  if (!point.spec.attributes.empty()) {
    json["attributes"] = attributes_json(point.spec);
  }
  add_timing(json, point.timing);
  return json;
}

Json copy_json(const CopyPoint& point) {
  Json json;
  json["bytes"] = point.bytes;
  add_timing(json, point.timing);
  return json;
}

Json comm_json(const CommPoint& point) {
  Json json;
  json["kind"] = comm_kind_name(point.spec.kind);
  json["algorithm"] = comm_algorithm_name(point.spec.algorithm);
  json["ranks"] = point.spec.placement.num_ranks;
  json["nodes"] = point.spec.placement.num_nodes;
  json["fewest_per_node"] = point.spec.placement.fewest_per_node;
  json["bytes"] = point.spec.bytes;
  add_timing(json, point.timing);
  return json;
}

Json contention_json(const Contention& contention) {
  const auto rates = [](const SharedRates& shared) {
    return Json{{"compute", shared.compute}, {"communication", shared.communication}};
  };
  Json json;
  json[std::string(kContentionKeys[0])] = rates(contention.gemm_and_sm_comm);
  json[std::string(kContentionKeys[1])] = rates(contention.memory_bound_and_sm_comm);
  json[std::string(kContentionKeys[2])] = rates(contention.compute_and_copy_engine);
  json[std::string(kContentionKeys[3])] = contention.comm_sms;
  json[std::string(kContentionKeys[4])] = rates(contention.compute_and_row_exchange);
  return json;
}

/// "[\n<indent>  line,\n ...\n<indent>]": a line per item, which `dump` does not support.
template <class Items, class ToJson>
std::string lines(const Items& items, ToJson&& to_json, std::string_view indent) {
  if (items.empty()) {
    return "[]";
  }
  std::string text = "[";
  std::string_view separator = "\n";
  for (const auto& item : items) {
    text += fmt::format("{}{}  {}", separator, indent, one_line(to_json(item)));
    separator = ",\n";
  }
  return text + fmt::format("\n{}]", indent);
}

/// Ops in the order of their first points, each with all its points.
std::string tasks_text(const std::vector<TaskPoint>& tasks) {
  std::vector<std::pair<std::string, std::vector<TaskPoint>>> by_op;
  for (const TaskPoint& task : tasks) {
    auto found = std::find_if(by_op.begin(), by_op.end(),
                              [&](const auto& entry) { return entry.first == task.spec.op; });
    if (found == by_op.end()) {
      found = by_op.insert(by_op.end(), {task.spec.op, {}});
    }
    found->second.push_back(task);
  }
  std::string text = "{";
  std::string_view separator = "\n";
  for (const auto& [op, points] : by_op) {
    text += fmt::format("{}    {}: {}", separator, one_line(op), lines(points, task_json, "    "));
    separator = ",\n";
  }
  return text + (by_op.empty() ? "}" : "\n  }");
}

Json device_json(const Profile& profile) {
  Json json;
  json["format"] = kProfileFormat;
  json["version"] = kProfileVersion;
  json["device"] = profile.device_kind;
  json["origin"] = {{"device", profile.origin.device},
                    {"software", profile.origin.software},
                    {"date", profile.origin.date},
                    {"threads", profile.origin.threads}};
  if (!profile.peak_flops_per_s.empty()) {
    for (const auto& [dtype, rate] : profile.peak_flops_per_s) {
      json["peak_flops_per_s"][std::string(dtype_name(dtype))] = rate;
    }
  }
  if (profile.memory_bytes_per_s) {
    json["memory_bytes_per_s"] = *profile.memory_bytes_per_s;
  }
  json["launch_ns"] = profile.launch_ns;
  json["step_overhead_ns"] = profile.step_overhead_ns;
  if (profile.contention) {
    json["contention"] = contention_json(*profile.contention);
  }
  return json;
}

}  // namespace

std::string print_profile(const Profile& profile) {
  std::string text = "{\n";
  const Json head = device_json(profile);
  for (const auto& [key, value] : head.items()) {
    text += fmt::format("  {}: {},\n", one_line(key), one_line(value));
  }
  text += fmt::format("  \"tasks\": {},\n", tasks_text(profile.tasks));
  text += fmt::format("  \"host_copies\": {{\n    \"to_device\": {},\n    \"to_host\": {}\n  }},\n",
                      lines(profile.to_device, copy_json, "    "),
                      lines(profile.to_host, copy_json, "    "));
  return text + fmt::format("  \"communication\": {}\n}}\n",
                            lines(profile.communication, comm_json, "  "));
}

}  // namespace braid
