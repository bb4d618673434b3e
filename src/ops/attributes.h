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
template <class T>
std::vector<Attribute> to_attributes(T typed) {
  std::vector<Attribute> list;
  typed.fields([&](std::string_view name, auto& member) {
    list.push_back({std::string(name), AttributeValue(member)});
  });
  return list;
}

/// Throws InternalError if the spec lacks an attribute, has one of another type, or has one too
/// many.
template <class T>
T attributes_of(const OpSpec& spec) {
  T typed;
  size_t found = 0;
  typed.fields([&](std::string_view name, auto& member) {
    using Member = std::remove_reference_t<decltype(member)>;
    const AttributeValue* value = spec.find_attribute(name);
    check(value != nullptr, "op {} needs the attribute {}", spec.op, name);
    const Member* held = std::get_if<Member>(value);
    check(held != nullptr, "op {}: attribute {} has the wrong type", spec.op, name);
    member = *held;
    ++found;
  });
  check(found == spec.attributes.size(), "op {} has {} attributes, expected {}", spec.op,
        spec.attributes.size(), found);
  return typed;
}

/// Of ops that have none.
struct NoAttributes {
  void fields(auto&&) {}
};

}  // namespace braid
