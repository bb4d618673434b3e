#include <charconv>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "ir/program.h"
#include "ir/text.h"
#include "sim/profile.h"

namespace braid {
namespace {

constexpr std::string_view kWrite = "write ";
constexpr std::string_view kReadWrite = "rw ";

bool accept(std::string_view& text, std::string_view prefix) {
  const bool found = text.starts_with(prefix);
  text.remove_prefix(found ? prefix.size() : 0);
  return found;
}

/// "[4,128]" or "[]".
std::optional<Shape> parse_shape(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') {
    return std::nullopt;
  }
  text = text.substr(1, text.size() - 2);
  Shape shape;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at != end) {
    int64_t dim = 0;
    const auto [next, error] = std::from_chars(at, end, dim);
    const bool ends_well = next == end || (*next == ',' && next + 1 != end);
    if (error != std::errc() || !ends_well || dim < 1 || shape.rank() == Shape::kMaxRank) {
      return std::nullopt;
    }
    shape.push_back(dim);
    at = next == end ? end : next + 1;
  }
  return is_valid_shape(shape) ? std::optional(shape) : std::nullopt;
}

}  // namespace

std::string print_operand_spec(const OperandSpec& operand) {
  const std::string_view access = operand.access == Access::kWrite       ? kWrite
                                  : operand.access == Access::kReadWrite ? kReadWrite
                                                                         : "";
  return fmt::format("{}{} {}", access, dtype_name(operand.dtype), to_string(operand.shape));
}

std::optional<OperandSpec> parse_operand_spec(std::string_view text) {
  OperandSpec operand;
  operand.access = accept(text, kWrite)       ? Access::kWrite
                   : accept(text, kReadWrite) ? Access::kReadWrite
                                              : Access::kRead;
  const size_t blank = text.find(' ');
  if (blank == std::string_view::npos) {
    return std::nullopt;
  }
  const std::optional<DType> dtype = parse_dtype(text.substr(0, blank));
  const std::optional<Shape> shape = parse_shape(text.substr(blank + 1));
  if (!dtype || !shape) {
    return std::nullopt;
  }
  operand.dtype = *dtype;
  operand.shape = *shape;
  return operand;
}

std::string describe_spec(const OpSpec& spec) {
  std::vector<std::string> operands;
  for (const OperandSpec& operand : spec.operands) {
    operands.push_back(print_operand_spec(operand));
  }
  std::vector<std::string> attributes;
  for (const Attribute& attribute : spec.attributes) {
    attributes.push_back(
        fmt::format("{}={}", attribute.name, print_attribute_value(attribute.value)));
  }
  return fmt::format("{}({}){}", spec.op, join(operands, ", "),
                     attributes.empty() ? "" : fmt::format(" {{{}}}", join(attributes, ", ")));
}

}  // namespace braid
