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

/// What a task does with one operand. kReadWrite keeps what it does not change: an accumulation, an
/// in-place collective.
enum class Access : uint8_t { kRead, kWrite, kReadWrite };

constexpr bool reads(Access access) {
  return access != Access::kWrite;
}
constexpr bool writes(Access access) {
  return access != Access::kRead;
}

using AttributeValue = std::variant<bool, int64_t, double, std::string>;

/// One named argument of an op, for example {"epsilon", 1e-5}. Equal means interchangeable: 0.0
/// differs from -0.0, 1 from 1.0, and NaN equals NaN.
struct Attribute {
  std::string name;
  AttributeValue value;

  friend bool operator==(const Attribute& a, const Attribute& b);
};

/// Type and dense row-major shape of one operand, and what the op does with it.
struct OperandSpec {
  DType dtype = DType::kF32;
  Access access = Access::kRead;
  Shape shape;

  friend bool operator==(const OperandSpec&, const OperandSpec&) = default;
};

/// Everything about a task except which memory it touches and where and when it runs: op,
/// attributes and operand types. Equal specs are stored once per program, so kernels are chosen,
/// tuned and costed per spec and not per task.
struct OpSpec {
  std::string op;
  std::vector<Attribute> attributes;  ///< in the order in which the op declares them
  std::vector<OperandSpec> operands;  ///< in the order in which the op declares them

  /// The attribute of that name, or null.
  const AttributeValue* find_attribute(std::string_view name) const;

  friend bool operator==(const OpSpec&, const OpSpec&) = default;
};

size_t hash_value(const OpSpec& spec);

/// Interns specs: equal specs get one id. Ids are dense and in order of first use.
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
