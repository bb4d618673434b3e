#include "ir/op_spec.h"

#include <cmath>
#include <functional>

namespace braid {
namespace {

void mix(size_t& seed, size_t value) {
  seed ^= value + 0x9E3779B97F4A7C15ull + (seed << 6) +
          (seed >> 2);  // as in boost::hash_combine, 64 bit
}

size_t hash_of(const AttributeValue& value) {
  const double* number = std::get_if<double>(&value);
  // All NaNs are equal, regardless of their bits.
  return number != nullptr && std::isnan(*number) ? 1 : std::hash<AttributeValue>{}(value);
}

}  // namespace

bool operator==(const Attribute& a, const Attribute& b) {
  if (a.name != b.name || a.value.index() != b.value.index()) {
    return false;
  }
  const double* x = std::get_if<double>(&a.value);
  if (x == nullptr) {
    return a.value == b.value;
  }
  const double y = std::get<double>(b.value);
  return std::isnan(*x) ? std::isnan(y) : *x == y && std::signbit(*x) == std::signbit(y);
}

const AttributeValue* OpSpec::find_attribute(std::string_view name) const {
  for (const Attribute& attribute : attributes) {
    if (attribute.name == name) {
      return &attribute.value;
    }
  }
  return nullptr;
}

size_t hash_value(const OpSpec& spec) {
  size_t seed = std::hash<std::string>{}(spec.op);
  for (const Attribute& attribute : spec.attributes) {
    mix(seed, std::hash<std::string>{}(attribute.name));
    mix(seed, hash_of(attribute.value));
  }
  for (const OperandSpec& operand : spec.operands) {
    mix(seed, static_cast<size_t>(operand.dtype) * 4 + static_cast<size_t>(operand.access));
    for (const int64_t dim : operand.shape) {
      mix(seed, static_cast<size_t>(dim));
    }
  }
  return seed;
}

SpecId SpecTable::intern(const OpSpec& spec) {
  const size_t hash = hash_value(spec);
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (specs_[it->second.index()] == spec) {
      return it->second;
    }
  }
  const SpecId id(specs_.size());
  specs_.push_back(spec);
  by_hash_.emplace(hash, id);
  return id;
}

}  // namespace braid
