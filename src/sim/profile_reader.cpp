#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "ir/program.h"
#include "ops/op.h"
#include "sim/analytic_model.h"
#include "sim/op_family.h"
#include "sim/profile.h"
#include "sim/profile_format.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownBytes = 80;  ///< of an invalid value

/// A value of the file with its path in the document ("tasks.linear[3].ns"), which every error
/// names.
class JsonValue {
 public:
  JsonValue(const Json& json, std::string_view file, std::string where)
      : json_(json), file_(file), where_(std::move(where)) {}

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw_data_error("profile '{}': {}{}", file_, where_.empty() ? "" : where_ + ": ",
                     fmt::format(format, std::forward<Args>(args)...));
  }

  /// Checks that this is an object with no keys other than these.
  void expect_keys(std::span<const std::string_view> known) const {
    if (!json_.is_object()) {
      fail("expected an object, found {}", shown());
    }
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        fail("unknown key {}{}", quote(key, kShownBytes), did_you_mean(key, known));
      }
    }
  }

  bool has(const std::string& key) const { return json_.contains(key); }

  JsonValue at(const std::string& key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) {
      fail("\"{}\" is missing", key);
    }
    return {*found, file_, where_.empty() ? key : fmt::format("{}.{}", where_, key)};
  }

  int64_t integer(int64_t low, int64_t high) const {
    const std::optional<int64_t> value = json_integer(json_);
    if (!value || *value < low || *value > high) {
      fail("expected an integer from {} to {}, found {}", low, high, shown());
    }
    return *value;
  }

  double number(double low, double high) const {
    const double value = json_.is_number() ? json_.get<double>() : NAN;
    if (!(value >= low && value <= high)) {
      fail("expected a number from {} to {}, found {}", low, high, shown());
    }
    return value;
  }

  std::string text() const {
    if (!json_.is_string()) {
      fail("expected a text, found {}", shown());
    }
    return json_.get<std::string>();
  }

  template <class Use>
  void for_each_item(Use&& use) const {
    if (!json_.is_array()) {
      fail("expected a list, found {}", shown());
    }
    for (size_t i = 0; i < json_.size(); ++i) {
      use(JsonValue(json_[i], file_, fmt::format("{}[{}]", where_, i)));
    }
  }

  template <class Use>
  void for_each_member(Use&& use) const {
    if (!json_.is_object()) {
      fail("expected an object, found {}", shown());
    }
    for (const auto& [key, value] : json_.items()) {
      use(key, JsonValue(value, file_, fmt::format("{}.{}", where_, key)));
    }
  }

  AttributeValue attribute() const {
    if (json_.is_boolean()) {
      return json_.get<bool>();
    }
    if (json_.is_string()) {
      return text();
    }
    return json_.is_number_float() ? AttributeValue(json_.get<double>())
                                   : AttributeValue(integer(-kMaxAttribute, kMaxAttribute));
  }

  std::string shown() const {
    const std::string text = json_.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() > kShownBytes ? text.substr(0, kShownBytes) + "..." : text;
  }

 private:
  const Json& json_;
  std::string_view file_;
  std::string where_;
};

bool is_op(const std::string& name) {
  const auto ops = all_ops();
  return std::any_of(ops.begin(), ops.end(),
                     [&](const OpDefinition* op) { return op->name == name; });
}

Timing read_timing(const JsonValue& point) {
  return {.ns = point.at("ns").integer(1, kMaxNs),
          .spread = point.has("spread") ? point.at("spread").number(0, kMaxSpread) : 0.0};
}

OpSpec read_spec(const std::string& op, const JsonValue& point) {
  OpSpec spec;
  spec.op = op;
  point.at("operands").for_each_item([&](const JsonValue& text) {
    const std::optional<OperandSpec> operand = parse_operand_spec(text.text());
    if (!operand) {
      text.fail("expected an operand like \"write bf16 [16,64]\", found {}", text.shown());
    }
    spec.operands.push_back(*operand);
  });
  if (point.has("attributes")) {
    point.at("attributes").for_each_member([&](const std::string& name, const JsonValue& value) {
      spec.attributes.push_back({name, value.attribute()});
    });
  }
  return spec;
}

class Reader {
 public:
  explicit Reader(const JsonValue& root) : root_(root) {}

  Profile read() {
    read_head();
    read_device();
    if (root_.has("contention")) {
      profile_.contention = read_contention(root_.at("contention"));
    }
    root_.at("tasks").for_each_member(
        [&](const std::string& op, const JsonValue& points) { read_tasks(op, points); });
    const JsonValue copies = root_.at("host_copies");
    copies.expect_keys(std::array<std::string_view, 2>{"to_device", "to_host"});
    profile_.to_device = read_copies(copies.at("to_device"));
    profile_.to_host = read_copies(copies.at("to_host"));
    root_.at("communication").for_each_item([&](const JsonValue& point) { read_comm(point); });
    return std::move(profile_);
  }

 private:
  void read_head() {
    constexpr std::array<std::string_view, 12> kKeys = {
        "format",    "version",          "device",
        "origin",    "peak_flops_per_s", "memory_bytes_per_s",
        "launch_ns", "step_overhead_ns", "contention",
        "tasks",     "host_copies",      "communication"};
    if (!root_.has("format") || root_.at("format").text() != kProfileFormat) {
      root_.fail("it does not have the format \"{}\"", kProfileFormat);
    }
    const int64_t version = root_.at("version").integer(0, INT64_MAX);
    if (version != kProfileVersion) {
      root_.fail("it has version {}, this braid reads version {}", version, kProfileVersion);
    }
    root_.expect_keys(kKeys);
  }

  void read_device() {
    const JsonValue device = root_.at("device");
    profile_.device_kind = device.text();
    if (find_device(profile_.device_kind) == nullptr) {
      device.fail("{} is not a known device; known are {}", device.shown(), known_device_names());
    }
    read_origin(root_.at("origin"));
    if (root_.has("peak_flops_per_s")) {
      root_.at("peak_flops_per_s")
          .for_each_member([&](const std::string& name, const JsonValue& rate) {
            const std::optional<DType> dtype = parse_dtype(name);
            if (!dtype || !is_floating_point(*dtype)) {
              rate.fail("{} is not a floating-point type", quote(name, kShownBytes));
            }
            profile_.peak_flops_per_s[*dtype] = rate.number(1, kMaxRate);
          });
    }
    if (root_.has("memory_bytes_per_s")) {
      profile_.memory_bytes_per_s = root_.at("memory_bytes_per_s").number(1, kMaxRate);
    }
    profile_.launch_ns = root_.at("launch_ns").integer(0, kMaxNs);
    profile_.step_overhead_ns = root_.at("step_overhead_ns").integer(0, kMaxNs);
  }

  void read_origin(const JsonValue& origin) {
    origin.expect_keys(std::array<std::string_view, 4>{"device", "software", "date", "threads"});
    const auto line = [&](const char* key) {
      const JsonValue value = origin.at(key);
      std::string text = value.text();
      if (!is_printable(text)) {
        value.fail("expected a text without control characters, found {}", value.shown());
      }
      return text;
    };
    profile_.origin = {.device = line("device"),
                       .software = line("software"),
                       .date = line("date"),
                       .threads = origin.at("threads").integer(0, 1 << 20)};
  }

  static Contention read_contention(const JsonValue& node) {
    node.expect_keys(kContentionKeys);
    const auto rates = [&](std::string_view key) {
      const JsonValue pair = node.at(std::string(key));
      pair.expect_keys(std::array<std::string_view, 2>{"compute", "communication"});
      return SharedRates{.compute = pair.at("compute").number(kMinSharedRate, 1),
                         .communication = pair.at("communication").number(kMinSharedRate, 1)};
    };
    Contention contention{.gemm_and_sm_comm = rates(kContentionKeys[0]),
                          .memory_bound_and_sm_comm = rates(kContentionKeys[1]),
                          .compute_and_copy_engine = rates(kContentionKeys[2])};
    const std::string sms(kContentionKeys[3]);
    if (node.has(sms)) {
      contention.comm_sms = static_cast<int>(node.at(sms).integer(1, kMaxCommSms));
    }
    contention.compute_and_row_exchange = node.has(std::string(kContentionKeys[4]))
                                              ? rates(kContentionKeys[4])
                                              : default_contention().compute_and_row_exchange;
    return contention;
  }

  void read_tasks(const std::string& op, const JsonValue& points) {
    if (!is_op(op)) {
      points.fail("unknown op {}", quote(op, kShownBytes));
    }
    if (find_op(op).op_class == OpClass::kCommunication) {
      points.fail("{} communicates: it belongs into \"communication\"", op);
    }
    points.for_each_item([&](const JsonValue& point) {
      point.expect_keys(std::array<std::string_view, 4>{"operands", "attributes", "ns", "spread"});
      TaskPoint task{.spec = read_spec(op, point), .timing = read_timing(point)};
      check_task(task.spec, point);
      profile_.tasks.push_back(std::move(task));
    });
  }

  void check_task(const OpSpec& spec, const JsonValue& point) {
    try {
      check_spec(spec);
    } catch (const InternalError& error) {
      point.fail("{}", error.what());
    }
    if (!seen_.insert(timing_key(spec)).second) {
      point.fail("{} was given before", describe_spec(spec));
    }
  }

  static std::vector<CopyPoint> read_copies(const JsonValue& list) {
    std::vector<CopyPoint> points;
    std::set<int64_t> sizes;
    list.for_each_item([&](const JsonValue& node) {
      node.expect_keys(std::array<std::string_view, 3>{"bytes", "ns", "spread"});
      points.push_back(
          {.bytes = node.at("bytes").integer(1, kMaxElems), .timing = read_timing(node)});
      if (!sizes.insert(points.back().bytes).second) {
        node.fail("{} bytes were given before", points.back().bytes);
      }
    });
    return points;
  }

  void read_comm(const JsonValue& node) {
    node.expect_keys(std::array<std::string_view, 8>{"kind", "algorithm", "ranks", "nodes",
                                                     "fewest_per_node", "bytes", "ns", "spread"});
    const JsonValue kind = node.at("kind");
    const JsonValue algorithm = node.at("algorithm");
    const auto parsed_kind = parse_comm_kind(kind.text());
    const auto parsed_algorithm = parse_comm_algorithm(algorithm.text());
    if (!parsed_kind) {
      kind.fail("unknown communication {}", kind.shown());
    }
    if (!parsed_algorithm) {
      algorithm.fail("unknown algorithm {}", algorithm.shown());
    }
    const int64_t ranks = node.at("ranks").integer(2, kMaxClusterDevices);
    const int64_t nodes = node.at("nodes").integer(1, ranks);
    const int64_t fewest = node.at("fewest_per_node").integer(1, ranks / nodes);
    const CommPoint point{.spec = {.kind = *parsed_kind,
                                   .algorithm = *parsed_algorithm,
                                   .placement = {.num_ranks = static_cast<int>(ranks),
                                                 .num_nodes = static_cast<int>(nodes),
                                                 .fewest_per_node = static_cast<int>(fewest)},
                                   .bytes = node.at("bytes").integer(1, kMaxElems)},
                          .timing = read_timing(node)};
    const std::string fault = comm_fault(point.spec);
    if (!fault.empty()) {
      node.fail("{}", fault);
    }
    if (!seen_comm_
             .insert({static_cast<int64_t>(*parsed_kind), static_cast<int64_t>(*parsed_algorithm),
                      ranks, nodes, fewest, point.spec.bytes})
             .second) {
      node.fail("the same communication was given before");
    }
    profile_.communication.push_back(point);
  }

  struct SpecHash {
    size_t operator()(const OpSpec& spec) const { return hash_value(spec); }
  };

  const JsonValue& root_;
  Profile profile_;
  std::unordered_set<OpSpec, SpecHash> seen_;
  std::set<std::array<int64_t, 6>> seen_comm_;
};

}  // namespace

Profile parse_profile(std::string_view text, std::string_view path) {
  const Json json = parse_ordered_json(text, fmt::format("profile '{}'", path));
  const JsonValue root(json, path, "");
  if (!json.is_object()) {
    root.fail("expected an object, found {}", root.shown());
  }
  return Reader(root).read();
}

Profile load_profile(const std::string& path) {
  return parse_profile(read_text_file(path, kMaxProfileBytes), path);
}

}  // namespace braid
