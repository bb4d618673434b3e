#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/expect_error.h"
#include "ops/attributes.h"
#include "ops/op.h"
#include "ops/operand_checker.h"

namespace braid {

inline OperandSpec read(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kRead, .shape = shape};
}
inline OperandSpec write(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kWrite, .shape = shape};
}
inline OperandSpec read_write(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kReadWrite, .shape = shape};
}

/// `spec` with one attribute changed.
inline OpSpec with_attribute(OpSpec spec, std::string_view name, AttributeValue value) {
  for (Attribute& attribute : spec.attributes) {
    if (attribute.name == name) {
      attribute.value = std::move(value);
      return spec;
    }
  }
  ADD_FAILURE() << spec.op << " has no attribute " << name;
  return spec;
}

/// `spec` with one operand changed.
inline OpSpec with_operand(OpSpec spec, size_t index, OperandSpec operand) {
  spec.operands.at(index) = operand;
  return spec;
}

/// Expects that the op refuses the spec, and that the message names the op and `what`.
inline void expect_refused(const OpSpec& spec, const std::string& what) {
  const std::string message = message_of<InternalError>([&] { check_spec(spec); });
  EXPECT_THAT(message, testing::HasSubstr("op " + spec.op));
  EXPECT_THAT(message, testing::HasSubstr(what));
}

inline void expect_cost(const OpSpec& spec, const OpCost& expected) {
  const OpCost cost = spec_cost(spec);
  EXPECT_EQ(cost.flops, expected.flops) << spec.op;
  EXPECT_EQ(cost.bytes_read, expected.bytes_read) << spec.op;
  EXPECT_EQ(cost.bytes_written, expected.bytes_written) << spec.op;
  EXPECT_EQ(cost.comm_bytes, expected.comm_bytes) << spec.op;
  EXPECT_EQ(cost.host_bytes, expected.host_bytes) << spec.op;
}

}  // namespace braid
