#include "checkpoint/state_file.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/errors.h"
#include "base/json.h"

namespace braid {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kFormat = "braid checkpoint";
constexpr int64_t kFirstVersion = 1;
constexpr int64_t kVersion = 4;
constexpr std::string_view kChecksumField = "\"state_xxh3\": \"";
constexpr size_t kChecksumDigits = 16;

/// Position of the checksum's digits in the text; npos if it has none.
size_t find_checksum(std::string_view text) {
  const size_t field = text.rfind(kChecksumField);
  if (field == std::string_view::npos ||
      text.size() - field < kChecksumField.size() + kChecksumDigits) {
    return std::string_view::npos;
  }
  return field + kChecksumField.size();
}

std::string checksum_without_digits(std::string_view text, size_t digits) {
  Checksum checksum;
  checksum.add(std::as_bytes(std::span(text.substr(0, digits))));
  checksum.add(std::as_bytes(std::span(text.substr(digits + kChecksumDigits))));
  return checksum.hex();
}

class StateReader {
 public:
  explicit StateReader(std::string_view path) : path_(path) {}

  StoredState read(std::string_view text) const {
    const size_t digits = find_checksum(text);
    if (digits != std::string_view::npos) {
      check_checksum(text, digits);
    }
    const json root = parse_json(text, fmt::format("'{}'", path_));
    const int64_t version = checked_version(root);
    if (digits == std::string_view::npos) {
      fail("its checksum is missing");
    }
    StoredState stored;
    stored.version = version;
    stored.state.step = number(root, "step");
    stored.state.consumed_samples = number(root, "consumed_samples");
    stored.state.consumed_tokens = number(root, "consumed_tokens");
    stored.state.seed = field(root, "seed", json::value_t::number_integer).get<int64_t>();
    stored.state.model = text_of(root, "model");
    stored.state.config = text_of(root, "config");
    for (const auto& [name, value] : field(root, "extra", json::value_t::object).items()) {
      stored.state.extra.emplace(name, text_of(root["extra"], name));
    }
    for (const auto& [name, value] : field(root, "files", json::value_t::object).items()) {
      stored.files.push_back({name, number(value, "size_bytes"), text_of(value, "xxh3")});
    }
    return stored;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw_data_error("'{}' is not a valid checkpoint state: {}", path_,
                     fmt::format(format, std::forward<Args>(args)...));
  }

  void check_checksum(std::string_view text, size_t digits) const {
    const std::string found = checksum_without_digits(text, digits);
    if (found != text.substr(digits, kChecksumDigits)) {
      fail("it is damaged: its content does not match the checksum that it records (found {})",
           found);
    }
  }

  int64_t checked_version(const json& root) const {
    if (!root.is_object() || root.value("format", json()) != kFormat) {
      fail("it does not have the format \"{}\"", kFormat);
    }
    const int64_t version = number(root, "version");
    if (version < kFirstVersion || version > kVersion) {
      fail("it has version {}, but this braid reads versions {} to {}", version, kFirstVersion,
           kVersion);
    }
    return version;
  }

  const json& field(const json& object, const std::string& name, json::value_t type) const {
    const auto found = object.is_object() ? object.find(name) : object.end();
    const bool is_good = object.is_object() && found != object.end() &&
                         (type == json::value_t::number_integer ? found->is_number_integer()
                                                                : found->type() == type);
    if (!is_good) {
      fail("\"{}\" is missing or of another type", name);
    }
    return *found;
  }

  std::string text_of(const json& object, const std::string& name) const {
    return field(object, name, json::value_t::string).get<std::string>();
  }

  /// A count, which must not be negative.
  int64_t number(const json& object, const std::string& name) const {
    const json& value = field(object, name, json::value_t::number_integer);
    if (!value.is_number_unsigned() ||
        value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      fail("\"{}\" is out of range", name);
    }
    return value.get<int64_t>();
  }

  std::string_view path_;
};

}  // namespace

std::string print_state(const StoredState& stored) {
  const CheckpointState& state = stored.state;
  ordered_json root = {{"format", kFormat},
                       {"version", stored.version},
                       {"step", state.step},
                       {"consumed_samples", state.consumed_samples},
                       {"consumed_tokens", state.consumed_tokens},
                       {"seed", state.seed},
                       {"model", state.model},
                       {"config", state.config},
                       {"extra", state.extra},
                       {"files", ordered_json::object()},
                       {"state_xxh3", std::string(kChecksumDigits, '0')}};
  for (const FileRecord& file : stored.files) {
    root["files"][file.name] = {{"size_bytes", file.size_bytes}, {"xxh3", file.checksum}};
  }
  std::string text;
  try {
    text = root.dump(2) + "\n";
  } catch (const ordered_json::type_error&) {
    throw_internal_error("the state of a checkpoint holds a text that is not UTF-8");
  }
  const size_t digits = find_checksum(text);
  return text.replace(digits, kChecksumDigits, checksum_without_digits(text, digits));
}

StoredState parse_state(std::string_view text, std::string_view path) {
  return StateReader(path).read(text);
}

}  // namespace braid
