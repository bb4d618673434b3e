#include "sim/device_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <sstream>
#include <variant>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "base/toml.h"

namespace braid {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr size_t kShownBytes = 60;

/// A lower power limit lowers the clock of long products: between the cube root of the power, if
/// the voltage follows the clock, and the power itself, if it stays.
constexpr double kClockPerPower = 0.5;

/// Where a value goes. Of a pair, `AttentionRate`; of two lists of equal length, the levels.
using Place = std::variant<double*, int64_t*, int*, bool*, std::string*, std::vector<std::string>*,
                           AttentionRate*, std::vector<NetworkLevel>*>;

struct Key {
  std::string_view section;
  std::string_view name;
  Place (*place)(DeviceSpec&);
  double least = 0;
  double most = 0;
  double unit = 1;           ///< by which a number is multiplied
  bool is_required = false;  ///< in a file without `like`
};

constexpr double kMaxRate = 1e6;  // TFLOP/s, GB/s
constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr double kMaxNs = 1e9;
constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kMaxDevices = 1 << 20;

#define BRAID_PLACE(member) [](DeviceSpec& d) -> Place { return &d.member; }

constexpr std::array kKeys = {
    Key{"device", "name", BRAID_PLACE(kind), 0, 0, 1, true},
    Key{"device", "description", BRAID_PLACE(description), 0, 0, 1, true},
    Key{"device", "driver_names", BRAID_PLACE(driver_names)},
    Key{"device", "backend", BRAID_PLACE(backend)},
    Key{"device", "power_w", BRAID_PLACE(power_w), 1, 1e5},
    Key{"device", "hopper_products", BRAID_PLACE(hopper_products)},
    Key{"device", "mxfp8", BRAID_PLACE(has_mxfp8)},
    Key{"peak", "bf16_tflops", BRAID_PLACE(bf16_flops_per_s), 1e-6, kMaxRate, kTera, true},
    Key{"peak", "fp8_tflops", BRAID_PLACE(fp8_flops_per_s), 0, kMaxRate, kTera},
    Key{"peak", "f32_tflops", BRAID_PLACE(f32_flops_per_s), 1e-6, kMaxRate, kTera, true},
    Key{"peak", "f64_tflops", BRAID_PLACE(f64_flops_per_s), 1e-6, kMaxRate, kTera, true},
    Key{"peak", "sms", BRAID_PLACE(num_sms), 0, 1e5, 1, true},
    Key{"reached", "gemm", BRAID_PLACE(gemm_fraction), 0.01, 1, 1, true},
    Key{"reached", "gemm_burst", BRAID_PLACE(gemm_burst_fraction), 0.01, 1, 1, true},
    Key{"reached", "most_clock", BRAID_PLACE(most_clock), 1, 2, 1, false},
    Key{"reached", "memory", BRAID_PLACE(memory_fraction), 0.01, 1, 1, true},
    Key{"reached", "fp8_one", BRAID_PLACE(fp8_parts.one), 0, 1},
    Key{"reached", "fp8_squares", BRAID_PLACE(fp8_parts.squares), 0, 1},
    Key{"reached", "fp8_runs", BRAID_PLACE(fp8_parts.runs), 0, 1},
    Key{"reached", "fp8_runs_of_32", BRAID_PLACE(fp8_parts.runs_of_32), 0, 1},
    Key{"reached", "attention_64", BRAID_PLACE(attention.head_64), 0.01, 1, 1, true},
    Key{"reached", "attention_128", BRAID_PLACE(attention.head_128), 0.01, 1, 1, true},
    Key{"reached", "attention_backward_64", BRAID_PLACE(attention_backward.head_64), 0.01, 1, 1,
        true},
    Key{"reached", "attention_backward_128", BRAID_PLACE(attention_backward.head_128), 0.01, 1, 1,
        true},
    Key{"memory", "usable_gib", BRAID_PLACE(memory_bytes), 0.1, 1e5, kGiB, true},
    Key{"memory", "gbytes_per_s", BRAID_PLACE(memory_bytes_per_s), 0.1, kMaxRate, kGiga, true},
    Key{"memory", "cache_mib", BRAID_PLACE(cache_bytes), 0, 1e5, 1024.0 * 1024, true},
    Key{"host", "launch_ns", BRAID_PLACE(launch_ns), 1, kMaxNs, 1, true},
    Key{"host", "step_ns", BRAID_PLACE(step_overhead_ns), 0, kMaxNs, 1, true},
    Key{"host", "gbytes_per_s", BRAID_PLACE(host_bytes_per_s), 0.1, kMaxRate, kGiga, true},
    Key{"host", "latency_ns", BRAID_PLACE(host_latency_ns), 0, kMaxNs, 1, true},
    Key{"node", "devices", BRAID_PLACE(node.devices), 1, kMaxDevices, 1, true},
    Key{"node", "link", BRAID_PLACE(node.inside.name), 0, 0, 1, true},
    Key{"node", "gbytes_per_s", BRAID_PLACE(node.inside.bytes_per_s), 0.01, kMaxRate, kGiga, true},
    Key{"node", "multicast", BRAID_PLACE(node.multicast), 0, 1},
    Key{"node", "ring_step_ns", BRAID_PLACE(node.inside.ring_step_ns), 0, kMaxNs},
    Key{"node", "ring_step_middle_ns", BRAID_PLACE(node.inside.ring_step_middle_ns), 0, kMaxNs},
    Key{"node", "ring_step_small_ns", BRAID_PLACE(node.inside.ring_step_small_ns), 0, kMaxNs},
    Key{"node", "tree_step_ns", BRAID_PLACE(node.inside.tree_step_ns), 0, kMaxNs},
    Key{"node", "tree_step_middle_ns", BRAID_PLACE(node.inside.tree_step_middle_ns), 0, kMaxNs},
    Key{"node", "tree_step_small_ns", BRAID_PLACE(node.inside.tree_step_small_ns), 0, kMaxNs},
    Key{"network", "nodes", BRAID_PLACE(node.nodes), 1, kMaxDevices},
    Key{"network", "link", BRAID_PLACE(node.network.name), 0, 0, 1, true},
    Key{"network", "gbytes_per_s", BRAID_PLACE(node.network.bytes_per_s), 0.01, kMaxRate, kGiga,
        true},
    Key{"network", "ring_step_ns", BRAID_PLACE(node.network.ring_step_ns), 0, kMaxNs},
    Key{"network", "ring_step_middle_ns", BRAID_PLACE(node.network.ring_step_middle_ns), 0, kMaxNs},
    Key{"network", "ring_step_small_ns", BRAID_PLACE(node.network.ring_step_small_ns), 0, kMaxNs},
    Key{"network", "tree_step_ns", BRAID_PLACE(node.network.tree_step_ns), 0, kMaxNs},
    Key{"network", "tree_step_middle_ns", BRAID_PLACE(node.network.tree_step_middle_ns), 0, kMaxNs},
    Key{"network", "tree_step_small_ns", BRAID_PLACE(node.network.tree_step_small_ns), 0, kMaxNs},
    Key{"network", "levels", BRAID_PLACE(node.levels), 1, 1000},
    Key{"range", "kernels", BRAID_PLACE(range.kernels), 0, 1},
    Key{"range", "node_links", BRAID_PLACE(range.node_links), 0, 1},
    Key{"range", "network_links", BRAID_PLACE(range.network_links), 0, 1},
    Key{"range", "congestion", BRAID_PLACE(range.congestion), 0, 1},
    Key{"range", "device_sd", BRAID_PLACE(range.device_sd), 0, 1},
    Key{"range", "step_sd", BRAID_PLACE(range.step_sd), 0, 1},
    Key{"stack", "name", BRAID_PLACE(stack.name)},
    Key{"stack", "description", BRAID_PLACE(stack.description)},
    Key{"stack", "gemm", BRAID_PLACE(stack.gemm), 0.1, 2},
    Key{"stack", "attention", BRAID_PLACE(stack.attention), 0.1, 2},
    Key{"stack", "hopper_gemm", BRAID_PLACE(stack.hopper_gemm), 0.1, 2},
    Key{"stack", "hopper_attention", BRAID_PLACE(stack.hopper_attention), 0.1, 2},
    Key{"stack", "communication", BRAID_PLACE(stack.communication), 0.1, 2},
    Key{"stack", "fused_swiglu", BRAID_PLACE(stack.fused_swiglu)},
    Key{"stack", "memory_passes", BRAID_PLACE(stack.memory_passes), 0.5, 20},
    Key{"stack", "score_passes", BRAID_PLACE(stack.score_passes), 0, 100},
    Key{"stack", "op_ns", BRAID_PLACE(stack.op_ns), 0, kMaxNs},
    Key{"stack", "op_gap_ns", BRAID_PLACE(stack.op_gap_ns), 0, kMaxNs},
    Key{"stack", "step_ns", BRAID_PLACE(stack.step_ns), 0, kMaxNs * 10},
    Key{"stack", "overlap", BRAID_PLACE(stack.overlap)},
    Key{"stack", "kernels_range", BRAID_PLACE(stack.kernels_range), 0, 1},
    Key{"stack", "fp8_range", BRAID_PLACE(stack.fp8_range), 0, 1},
};

#undef BRAID_PLACE

/// Steps from rank to rank over links of a kind: NCCL's tuning tables (src/graph/tuning.cc, 2.28),
/// ring and tree, each by protocol (Simple, LL128, LL). Ranks of a CPU are threads of one process.
struct LinkKind {
  std::string_view name;
  FabricSpec steps;
};

const std::array<LinkKind, 4>& link_kinds() {
  static const std::array<LinkKind, 4> kKinds = {
      {{"nvlink", {"", 0, 3'400, 1'900, 600, 4'000, 1'250, 600}},
       {"pcie", {"", 0, 5'700, 2'500, 1'000, 4'000, 1'900, 1'000}},
       {"network", {"", 0, 14'000, 4'000, 2'700, 14'000, 8'500, 5'000}},
       {"memory", {"", 0, 5'000, 5'000, 5'000, 5'000, 5'000, 5'000}}}};
  return kKinds;
}

/// Keys that say how others are read: they have no place in a DeviceSpec.
constexpr std::string_view kLike = "like";
constexpr std::string_view kLinkKind = "kind";

constexpr std::string_view kStack = "stack";

/// One file on its way into a device.
class DeviceFile {
 public:
  DeviceFile(std::string_view text, std::string_view source)
      : source_(source), table_(parsed(text)) {}

  DeviceSpec device() { return changed(base()); }

  DeviceSpec stacked_on(DeviceSpec device) {
    has_base_ = true;
    for (const auto& [name, node] : table_) {
      if (name.str() != kStack) {
        throw_config_error("{}: {}: a stack has the section [{}] alone", where(node),
                           quote(name.str(), kShownBytes), kStack);
      }
    }
    device.stack = {};
    return changed(std::move(device));
  }

 private:
  DeviceSpec changed(DeviceSpec device) const {
    const DeviceSpec before = device;
    check_names();
    for (const std::string_view section : {"node", "network"}) {
      read_link_kind(section, section == "node" ? device.node.inside : device.node.network);
    }
    for (const Key& key : kKeys) {
      if (const toml::node* node = find(key.section, key.name)) {
        read(key, *node, device);
      } else if (key.is_required && !has_base_) {
        throw_config_error(
            "{}: {}.{} is missing; give it, or begin with {} = \"h100\" to take "
            "what is left out from a known device",
            source_, key.section, key.name, kLike);
      }
    }
    device.is_host = device.backend == "cpu";
    lower_clock(before, device);
    check_levels(device);
    return device;
  }

  toml::table parsed(std::string_view text) const {
    check_toml_dots(text, source_);
    try {
      return toml::parse(text, source_);
    } catch (const toml::parse_error& error) {
      const std::string what(error.description());
      throw_config_error("{}:{}: not valid TOML: {}", source_, error.source().begin.line,
                         is_printable(what) ? what : quote(what));
    }
  }

  std::string where(const toml::node& node) const {
    return fmt::format("{}:{}", source_, node.source().begin.line);
  }

  const toml::node* find(std::string_view section, std::string_view name) const {
    const toml::node* found = table_.get(section);
    return found != nullptr && found->is_table() ? found->as_table()->get(name) : nullptr;
  }

  DeviceSpec base() {
    const toml::node* like = table_.get(kLike);
    if (like == nullptr) {
      return {};
    }
    has_base_ = true;
    const std::string name = text_of(*like, kLike);
    std::vector<std::string_view> names;
    for (const BuiltInFile& file : built_in_devices()) {
      if (file.name == name) {
        return parse_device(file.text, fmt::format("hardware/{}.toml", name));
      }
      names.push_back(file.name);
    }
    throw_config_error("{}: like = {}: no known device{}; use one of {}", where(*like),
                       quote(name, kShownBytes), did_you_mean(name, names), join(names, ", "));
  }

  /// Every section and key of the file exists.
  void check_names() const {
    std::vector<std::string_view> sections;
    for (const Key& key : kKeys) {
      if (std::find(sections.begin(), sections.end(), key.section) == sections.end()) {
        sections.push_back(key.section);
      }
    }
    for (const auto& [name, node] : table_) {
      if (name.str() == kLike) {
        continue;
      }
      if (!node.is_table() ||
          std::find(sections.begin(), sections.end(), name.str()) == sections.end()) {
        throw_config_error("{}: unknown {} {}{}; a device file has the sections {}", where(node),
                           node.is_table() ? "section" : "key", quote(name.str(), kShownBytes),
                           did_you_mean(name.str(), sections), join(sections, ", "));
      }
      for (const auto& [key, value] : *node.as_table()) {
        check_key(name.str(), key.str(), value);
      }
    }
  }

  void check_key(std::string_view section, std::string_view name, const toml::node& node) const {
    std::vector<std::string_view> names;
    for (const Key& key : kKeys) {
      if (key.section == section) {
        names.push_back(key.name);
      }
    }
    if (section == "node" || section == "network") {
      names.push_back(kLinkKind);
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw_config_error("{}: unknown key {}.{}{}; [{}] has {}", where(node), section,
                         is_printable(name) ? std::string(name) : quote(name, kShownBytes),
                         did_you_mean(name, names), section, join(names, ", "));
    }
  }

  void read_link_kind(std::string_view section, FabricSpec& fabric) const {
    const toml::node* node = find(section, kLinkKind);
    if (node == nullptr) {
      return;
    }
    const std::string name = text_of(*node, fmt::format("{}.{}", section, kLinkKind));
    std::vector<std::string_view> names;
    for (const LinkKind& kind : link_kinds()) {
      if (kind.name == name) {
        fabric = kind.steps;
        return;
      }
      names.push_back(kind.name);
    }
    throw_config_error("{}: {}.{} = {}: use one of {}{}", where(*node), section, kLinkKind,
                       quote(name, kShownBytes), join(names, ", "), did_you_mean(name, names));
  }

  static std::string shown(const toml::node& node) {
    if (const auto number = node.value_exact<double>()) {
      return fmt::format("{}", *number);
    }
    std::ostringstream value;
    node.visit([&](const auto& inner) { value << inner; });
    return inert_line(value.str().substr(0, kShownBytes));
  }

  [[noreturn]] void throw_type(const toml::node& node, std::string_view key,
                               std::string_view expected) const {
    throw_config_error("{}: {} = {}: expected {}", where(node), key, shown(node), expected);
  }

  std::string text_of(const toml::node& node, std::string_view key) const {
    const auto text = node.value_exact<std::string>();
    if (!text || text->empty() || !is_printable(*text)) {
      throw_type(node, key, "a text of printable characters in quotes");
    }
    return *text;
  }

  void check_choice(const toml::node& node, std::string_view key, std::string_view value,
                    std::string_view chosen, std::array<std::string_view, 2> choices) const {
    if (key == chosen && value != choices[0] && value != choices[1]) {
      throw_config_error("{}: {} = {}: use \"{}\" or \"{}\"", where(node), key,
                         quote(value, kShownBytes), choices[0], choices[1]);
    }
  }

  double number_of(const toml::node& node, std::string_view key, double least, double most) const {
    const auto integer = node.value_exact<int64_t>();
    const auto number =
        integer ? std::optional(static_cast<double>(*integer)) : node.value_exact<double>();
    if (!number) {
      throw_type(node, key, fmt::format("a number from {} to {}", least, most));
    }
    if (!(*number >= least && *number <= most)) {
      throw_config_error("{}: {} = {} is outside {} to {}; the nearest valid value is {}",
                         where(node), key, *number, least, most, *number > most ? most : least);
    }
    return *number;
  }

  const toml::array& pair_of(const toml::node& node, std::string_view key,
                             std::string_view expected) const {
    const toml::array* array = node.as_array();
    if (array == nullptr || array->size() != 2) {
      throw_type(node, key, expected);
    }
    return *array;
  }

  void read(const Key& key, const toml::node& node, DeviceSpec& device) const {
    const std::string name = fmt::format("{}.{}", key.section, key.name);
    std::visit([&](auto* place) { read_into(key, name, node, *place); }, key.place(device));
  }

  void read_into(const Key& key, std::string_view name, const toml::node& node,
                 double& value) const {
    value = number_of(node, name, key.least, key.most) * key.unit;
  }
  void read_into(const Key& key, std::string_view name, const toml::node& node,
                 int64_t& value) const {
    const double number = number_of(node, name, key.least, key.most) * key.unit;
    if (key.unit == 1 && number != std::floor(number)) {
      throw_type(node, name, fmt::format("a whole number; the nearest is {:.0f}", number));
    }
    value = std::llround(number);
  }
  void read_into(const Key& key, std::string_view name, const toml::node& node, int& value) const {
    int64_t whole = 0;
    read_into(key, name, node, whole);
    value = static_cast<int>(whole);
  }
  void read_into(const Key& /*key*/, std::string_view name, const toml::node& node,
                 bool& value) const {
    const auto flag = node.value_exact<bool>();
    if (!flag) {
      throw_type(node, name, "true or false");
    }
    value = *flag;
  }
  void read_into(const Key& /*key*/, std::string_view name, const toml::node& node,
                 std::string& value) const {
    value = text_of(node, name);
    check_choice(node, name, value, "device.backend", {"cuda", "cpu"});
    check_choice(node, name, value, "stack.overlap", {"auto", "off"});
  }
  void read_into(const Key& /*key*/, std::string_view name, const toml::node& node,
                 std::vector<std::string>& value) const {
    const toml::array* array = node.as_array();
    if (array == nullptr) {
      throw_type(node, name, "a list of texts");
    }
    value.clear();
    for (const toml::node& entry : *array) {
      value.push_back(text_of(entry, name));
    }
  }
  void read_into(const Key& key, std::string_view name, const toml::node& node,
                 AttentionRate& value) const {
    const toml::array& pair =
        pair_of(node, name, "[part of the peak, tokens at which half of it is reached]");
    value = {.fraction = number_of(*pair.get(0), name, key.least, key.most),
             .half_tokens = number_of(*pair.get(1), name, 0, 1e6)};
  }
  void read_into(const Key& key, std::string_view name, const toml::node& node,
                 std::vector<NetworkLevel>& value) const {
    const toml::array* levels = node.as_array();
    if (levels == nullptr) {
      throw_type(node, name, "a list of [nodes of a unit, oversubscription above it]");
    }
    value.clear();
    for (const toml::node& entry : *levels) {
      const toml::array& pair =
          pair_of(entry, name, "a list of [nodes of a unit, oversubscription above it]");
      const double nodes = number_of(*pair.get(0), name, 1, kMaxDevices);
      if (nodes != std::floor(nodes)) {
        throw_type(entry, name, "a whole number of nodes");
      }
      value.push_back({.nodes = std::llround(nodes),
                       .oversubscription = number_of(*pair.get(1), name, key.least, key.most)});
    }
  }

  /// Units are made of whole smaller units, and traffic that goes further is no faster.
  void check_levels(const DeviceSpec& device) const {
    const std::vector<NetworkLevel>& levels = device.node.levels;
    for (size_t i = 1; i < levels.size(); ++i) {
      const NetworkLevel& inner = levels[i - 1];
      const NetworkLevel& outer = levels[i];
      if (outer.nodes <= inner.nodes || outer.nodes % inner.nodes != 0) {
        throw_config_error(
            "{}: network.levels: a unit of {} nodes does not consist of two or more units of {}; "
            "the nearest valid size is {}",
            source_, outer.nodes, inner.nodes,
            std::max<int64_t>(2, outer.nodes / inner.nodes) * inner.nodes);
      }
      if (outer.oversubscription < inner.oversubscription) {
        throw_config_error(
            "{}: network.levels: the oversubscription {} above units of {} nodes is below that of "
            "smaller units; the nearest valid value is {}",
            source_, outer.oversubscription, outer.nodes, inner.oversubscription);
      }
    }
  }

  /// A limit below that of the device that this one is like, unless the file says what products
  /// reach.
  void lower_clock(const DeviceSpec& before, DeviceSpec& device) const {
    if (has_base_ && before.power_w > 0 && device.power_w < before.power_w &&
        find("reached", "gemm") == nullptr) {
      device.gemm_fraction *= std::pow(device.power_w / before.power_w, kClockPerPower);
    }
  }

  std::string source_;
  toml::table table_;
  bool has_base_ = false;
};

}  // namespace

DeviceSpec parse_device(std::string_view text, std::string_view source) {
  return DeviceFile(text, source).device();
}

DeviceSpec load_device(const std::string& path) {
  DeviceSpec device = parse_device(read_text_file(path, kMaxFileBytes), path);
  device.kind = path;
  return device;
}

DeviceSpec with_stack(DeviceSpec device, const std::string& stack) {
  if (stack.ends_with(".toml")) {
    return DeviceFile(read_text_file(stack, kMaxFileBytes), stack).stacked_on(std::move(device));
  }
  std::vector<std::string_view> names;
  for (const BuiltInFile& file : built_in_stacks()) {
    if (file.name == stack) {
      return DeviceFile(file.text, fmt::format("stacks/{}.toml", stack))
          .stacked_on(std::move(device));
    }
    names.push_back(file.name);
  }
  throw_config_error(
      "--stack {}: unknown; use one of {}, or the path of a file that ends in .toml{}",
      quote(stack, kShownBytes), join(names, ", "), did_you_mean(stack, names));
}

std::vector<std::string> device_file_keys() {
  std::vector<std::string> keys;
  for (const Key& key : kKeys) {
    keys.push_back(fmt::format("{}.{}", key.section, key.name));
  }
  return keys;
}

}  // namespace braid
