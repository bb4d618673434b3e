#include "ops/op_traits.h"

#include <algorithm>

#include "ops/attributes.h"
#include "ops/declared_forms.h"
#include "ops/embedding.h"

namespace braid {
namespace {

TEST(OpRole, HasAnOp) {
  for (size_t i = 0; i < kNumOpRoles; ++i) {
    const auto role = static_cast<OpRole>(i);
    EXPECT_TRUE(std::ranges::any_of(all_ops(), [&](const OpDefinition* op) {
      return op->role == role && has_role({.op = std::string(op->name)}, role);
    })) << i;
  }
}

TEST(OpKind, HasANameForReaders) {
  EXPECT_EQ(op_kind_name(OpKind::kProduct), "matrix products");
  EXPECT_EQ(op_kind_name(OpKind::kRouting), "routing");
  EXPECT_EQ(op_kind_name(OpKind::kCommunication), "communication");
}

TEST(ValueRule, ByRowIsOfOperandsWithEqualRows) {
  for (const DeclaredForm& form : all_declared_forms()) {
    if (value_rule(form.spec) == ValueRule::kByRow) {
      for (const OperandSpec& operand : form.spec.operands) {
        EXPECT_EQ(operand.shape[0], form.spec.operands[0].shape[0]) << form.spec.op;
      }
    }
  }
}

TEST(ValueRule, MovedIsFromXToY) {
  for (const DeclaredForm& form : all_declared_forms()) {
    if (value_rule(form.spec) == ValueRule::kMoved) {
      ASSERT_EQ(form.spec.operands.size(), 2u) << form.spec.op;
      EXPECT_EQ(form.spec.operands[0].shape, form.spec.operands[1].shape) << form.spec.op;
      EXPECT_EQ(form.spec.operands[0].dtype, form.spec.operands[1].dtype) << form.spec.op;
    }
  }
}

TEST(IntegerNeed, OfTokensIsTheVocabularyOrWhatTheTableHolds) {
  EmbeddingAttributes attributes{.sequence = 4};
  OpSpec spec{"embedding",
              to_attributes(attributes),
              {read(DType::kI32, {8}), read(DType::kF32, {50, 16}), write(DType::kF32, {8, 16})}};
  check_spec(spec);
  EXPECT_EQ(integer_need(spec, 0).limit, 50);
  attributes.vocabulary = 100;
  attributes.vocabulary_begin = 50;
  spec.attributes = to_attributes(attributes);
  check_spec(spec);
  EXPECT_EQ(integer_need(spec, 0).limit, 100);
}

// Ranks that differ in it only are simulated as one.
TEST(PartBegin, IsANumberThatNoCostDependsOn) {
  size_t num_found = 0;
  for (const DeclaredForm& form : all_declared_forms()) {
    const OpDefinition& op = find_op(form.spec.op);
    if (op.part_begin.empty()) {
      continue;
    }
    OpSpec other = form.spec;
    for (Attribute& attribute : other.attributes) {
      if (attribute.name == op.part_begin) {
        attribute.value = std::get<int64_t>(attribute.value) + 8;
        ++num_found;
      }
    }
    const OpCost cost = op.cost(form.spec);
    const OpCost other_cost = op.cost(other);
    EXPECT_EQ(cost.flops, other_cost.flops) << op.name;
    EXPECT_EQ(cost.bytes_read, other_cost.bytes_read) << op.name;
    EXPECT_EQ(cost.bytes_written, other_cost.bytes_written) << op.name;
  }
  EXPECT_GE(num_found, 4u);
}

// Ranks decide by what the one that adds does.
TEST(AddedByOne, IsABooleanAttributeOfTheOp) {
  for (const DeclaredForm& form : all_declared_forms()) {
    const std::string_view name = find_op(form.spec.op).added_by_one;
    const AttributeValue* const value = form.spec.find_attribute(name);
    EXPECT_TRUE(name.empty() || (value != nullptr && std::holds_alternative<bool>(*value)))
        << form.spec.op;
  }
}

}  // namespace
}  // namespace braid
