#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/ids.h"
#include "base/shape.h"

namespace braid {

using SpecId = Id<struct SpecTag>;

/// What a task does with one operand. kReadWrite keeps the elements that the task does not change,
/// for example in an accumulation or an in-place collective.
enum class Access : uint8_t { kRead, kWrite, kReadWrite };

constexpr bool reads(Access access) {
  return access != Access::kWrite;
}
constexpr bool writes(Access access) {
  return access != Access::kRead;
}

using AttributeValue = std::variant<bool, int64_t, double, std::string>;

/// One named argument of an op, for example {"epsilon", 1e-5}. Two attributes are equal if they are
/// interchangeable: 0.0 differs from -0.0, 1 differs from 1.0, and NaN equals NaN.
struct Attribute {
  std::string name;
  AttributeValue value;

  friend bool operator==(const Attribute& a, const Attribute& b);
};

/// Dtype, dense row-major shape and access of one operand.
struct OperandSpec {
  DType dtype = DType::kF32;
  Access access = Access::kRead;
  Shape shape;

  friend bool operator==(const OperandSpec&, const OperandSpec&) = default;
};

/// Everything about a task except its memory, its stream and its position: op, attributes and
/// operand types. A program stores equal specs once, so kernels are selected, tuned and costed per
/// spec instead of per task.
struct OpSpec {
  std::string op;
  std::vector<Attribute> attributes;  ///< in the order that the op declares
  std::vector<OperandSpec> operands;  ///< in the order that the op declares

  /// Returns the attribute with that name, or null.
  const AttributeValue* find_attribute(std::string_view name) const;

  friend bool operator==(const OpSpec&, const OpSpec&) = default;
};

size_t hash_value(const OpSpec& spec);

/// Interns specs: equal specs get the same id. Ids are dense and follow the order of first use.
class SpecTable {
 public:
  SpecId intern(const OpSpec& spec);
  const OpSpec& operator[](SpecId id) const { return specs_[id.index()]; }
  size_t size() const { return specs_.size(); }
  const std::vector<OpSpec>& all() const { return specs_; }

 private:
  std::vector<OpSpec> specs_;
  std::unordered_multimap<size_t, SpecId> by_hash_;
};

}  // namespace braid
