#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/errors.h"
#include "ir/op_spec.h"

namespace braid {

/// Typed attributes of an op: a struct with a member function template `fields(visitor)` that calls
/// `visitor("name", member)` for each member in order. Members are bool, int64_t, double or
/// std::string.
///
///   struct RmsnormAttributes {
///     double epsilon = 1e-5;
///     void fields(auto&& visit) { visit("epsilon", epsilon); }
///   };
///   OpSpec spec{.op = "rmsnorm", .attributes = to_attributes(RmsnormAttributes{.epsilon = 1e-6}),
///   ...}; const auto attributes = attributes_of<RmsnormAttributes>(spec);
///
/// `visit.optional(part)` takes a member that itself has fields: a spec has either all of its
/// attributes or, if `part` equals its default, none. `visit.prefixed("of_", list)` takes a
/// std::vector<Attribute>: the attributes of another op, under names that begin so.
class AttributeWriter {
 public:
  explicit AttributeWriter(std::vector<Attribute>& list) : list_(list) {}

  void operator()(std::string_view name, auto& member) {
    list_.push_back({std::string(name), AttributeValue(member)});
  }
  template <class Part>
  void optional(Part& part) {
    if (!(part == Part{})) {
      part.fields(*this);
    }
  }
  void prefixed(std::string_view prefix, const std::vector<Attribute>& members) {
    for (const Attribute& member : members) {
      list_.push_back({std::string(prefix) + member.name, member.value});
    }
  }

 private:
  std::vector<Attribute>& list_;
};

template <class T>
std::vector<Attribute> to_attributes(T typed) {
  std::vector<Attribute> list;
  typed.fields(AttributeWriter(list));
  return list;
}

class AttributeReader {
 public:
  explicit AttributeReader(const OpSpec& spec) : spec_(spec) {}

  void operator()(std::string_view name, auto& member) {
    using Member = std::remove_reference_t<decltype(member)>;
    const AttributeValue* value = spec_.find_attribute(name);
    check(value != nullptr, "op {} needs the attribute {}", spec_.op, name);
    const Member* held = std::get_if<Member>(value);
    check(held != nullptr, "op {}: attribute {} has the wrong type", spec_.op, name);
    member = *held;
    ++found_;
  }
  template <class Part>
  void optional(Part& part) {
    Presence presence{spec_};
    part.fields(presence);
    if (presence.given) {
      part.fields(*this);
    }
  }
  void prefixed(std::string_view prefix, std::vector<Attribute>& members) {
    for (const Attribute& it : spec_.attributes) {
      if (it.name.starts_with(prefix)) {
        members.push_back({it.name.substr(prefix.size()), it.value});
        ++found_;
      }
    }
  }
  size_t found() const { return found_; }

 private:
  /// Whether the spec has any of the attributes of a part, other than prefixed ones.
  struct Presence {
    const OpSpec& spec;
    bool given = false;

    void operator()(std::string_view name, auto&) {
      given = given || spec.find_attribute(name) != nullptr;
    }
    void prefixed(std::string_view /*prefix*/, const std::vector<Attribute>& /*members*/) {}
  };

  const OpSpec& spec_;
  size_t found_ = 0;
};

/// Throws InternalError if the spec lacks an attribute, has one of another type, or has an
/// additional one.
template <class T>
T attributes_of(const OpSpec& spec) {
  T typed;
  AttributeReader reader(spec);
  typed.fields(reader);
  check(reader.found() == spec.attributes.size(), "op {} has {} attributes, expected {}", spec.op,
        spec.attributes.size(), reader.found());
  return typed;
}

/// For ops without attributes.
struct NoAttributes {
  void fields(auto&&) {}
};

}  // namespace braid
