#include "base/json.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

constexpr size_t kShownBytes = 80;      ///< of a key
constexpr int kNumberOutOfRange = 406;  ///< the library's number of this error

/// Refuses a text by its size and its brackets alone, before anything is made of it. Up to the
/// first fault of a text that is not JSON, the depth is that of the parser.
void check_limits(std::string_view text, std::string_view what, const JsonLimits& limits) {
  if (text.size() > static_cast<size_t>(limits.size_bytes)) {
    throw_data_error("{} has {} bytes of JSON, but the limit is {}", what, text.size(),
                     limits.size_bytes);
  }
  int64_t depth = 0;
  bool is_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      is_string = !is_string;
    } else if (is_string) {
      i += c == '\\' ? 1 : 0;
    } else if (c == '[' || c == '{') {
      if (++depth > limits.depth) {
        throw_data_error("{} nests arrays and objects deeper than {}, the limit, at byte {}", what,
                         limits.depth, i + 1);
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

/// "unexpected end of input" of the library's "[name] parse error at line 1, column 2: syntax error
/// while parsing value - unexpected end of input".
std::string_view reason_of(std::string_view message) {
  const size_t column = message.find(", column ");
  const size_t reason = message.find(": ", column == std::string_view::npos ? 0 : column);
  return reason == std::string_view::npos ? message : message.substr(reason + 2);
}

/// Makes a document of the parser's events. The library's own makers do not suffice: with a
/// callback it looks at all members of an object whenever one of them ends, and for an ordered
/// object at all members whenever one is added.
template <class Json>
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(std::string_view what) : what_(what) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(typename Json::binary_t&) override { return false; }  // not in text

  bool start_array(size_t) override { return open(Json::array()); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool end_array() override { return close(); }
  bool end_object() override { return close(); }

  bool key(std::string& name) override {
    Open& object = open_.back();
    if (!object.keys.insert(name).second) {
      throw_data_error("{}: key {} occurs twice in an object", what_, quote(name, kShownBytes));
    }
    auto& members = object.value->template get_ref<typename Json::object_t&>();
    if constexpr (std::is_same_v<Json, nlohmann::ordered_json>) {
      object.member = &members.emplace_back(std::move(name), nullptr).second;
    } else {
      object.member = &members.emplace(std::move(name), nullptr).first->second;
    }
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    if (error.id == kNumberOutOfRange) {
      throw_data_error("{} holds a number that is out of range at byte {}", what_, position);
    }
    throw_data_error("{} is not JSON at byte {}: {}", what_, position, reason_of(error.what()));
  }

 private:
  struct Open {
    Json* value;             ///< an array or an object
    Json* member = nullptr;  ///< of an object: the place of its next value
    std::set<std::string> keys = {};
  };

  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Open& parent = open_.back();
    if (parent.value->is_array()) {
      return &parent.value->emplace_back(std::move(value));
    }
    *parent.member = std::move(value);
    return parent.member;
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    open_.push_back({place(std::move(value))});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view what_;
  Json root_;
  std::vector<Open> open_;
};

template <class Json>
Json parse(std::string_view text, std::string_view what, const JsonLimits& limits) {
  check_limits(text, what, limits);
  Builder<Json> builder(what);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

template <class Json>
std::optional<int64_t> integer_of(const Json& value) {
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() ||
       value.template get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  return fits ? std::optional(value.template get<int64_t>()) : std::nullopt;
}

}  // namespace

std::optional<int64_t> json_integer(const nlohmann::json& value) {
  return integer_of(value);
}

std::optional<int64_t> json_integer(const nlohmann::ordered_json& value) {
  return integer_of(value);
}

nlohmann::json parse_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  return parse<nlohmann::json>(text, what, limits);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view what,
                                          const JsonLimits& limits) {
  return parse<nlohmann::ordered_json>(text, what, limits);
}

}  // namespace braid
