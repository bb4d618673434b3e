#include "ops/op.h"

#include <algorithm>
#include <set>

#include "ops/declared_forms.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

TEST(AllOps, HaveUniqueNamesSummariesChecksAndCosts) {
  std::set<std::string_view> names;
  for (const OpDefinition* op : all_ops()) {
    EXPECT_TRUE(names.insert(op->name).second) << op->name << " occurs twice";
    EXPECT_EQ(op->summary.substr(op->summary.size() - 1), ".") << op->name;
    EXPECT_NE(op->check, nullptr) << op->name;
    EXPECT_NE(op->cost, nullptr) << op->name;
    EXPECT_EQ(&find_op(op->name), op);
  }
}

TEST(FindOp, NamesAnUnknownOp) {
  EXPECT_THAT(message_of<InternalError>([] { find_op("linera"); }), HasSubstr("linera"));
  EXPECT_THAT(message_of<InternalError>([] { check_spec({.op = "linera"}); }), HasSubstr("linera"));
  EXPECT_THAT(message_of<InternalError>([] { spec_cost({.op = "linera"}); }), HasSubstr("linera"));
}

TEST(OpClass, IsCommunicationForCollectivesAndCopyForMovers) {
  for (const OpDefinition* op : all_ops()) {
    const bool moves =
        op->name == "copy" || op->name == "cast" || op->name == "fill" || op->name == "embedding";
    const OpClass expected = op->name == "all_reduce" ? OpClass::kCommunication
                             : moves                  ? OpClass::kCopy
                                                      : OpClass::kCompute;
    EXPECT_EQ(op->op_class, expected) << op->name;
  }
}

TEST(DeclaredForm, ExistsForEveryOp) {
  const auto forms = all_declared_forms();
  for (const OpDefinition* op : all_ops()) {
    EXPECT_TRUE(std::any_of(forms.begin(), forms.end(), [&](const DeclaredForm& form) {
      return form.spec.op == op->name;
    })) << op->name;
  }
}

TEST(DeclaredForm, IsAccepted) {
  for (const DeclaredForm& form : all_declared_forms()) {
    ASSERT_EQ(form.names.size(), form.spec.operands.size()) << form.spec.op;
    EXPECT_NO_THROW(check_spec(form.spec));
  }
}

TEST(DeclaredForm, WithoutItsLastOperandsIsRefusedByName) {
  for (const DeclaredForm& form : all_declared_forms()) {
    OpSpec spec = form.spec;
    while (!spec.operands.empty()) {
      spec.operands.pop_back();
      expect_refused(spec, spec.op == "fill" ? "y" : form.names[spec.operands.size()]);
    }
  }
}

TEST(DeclaredForm, WithAnOperandTooManyIsRefused) {
  for (const DeclaredForm& form : all_declared_forms()) {
    OpSpec spec = form.spec;
    spec.operands.push_back(spec.operands.back());
    expect_refused(spec, fmt::format("has {} operands, expected {}", spec.operands.size(),
                                     form.spec.operands.size()));
  }
}

TEST(DeclaredForm, WithOtherAccessIsRefusedByOperand) {
  for (const DeclaredForm& form : all_declared_forms()) {
    for (size_t i = 0; i < form.names.size(); ++i) {
      for (const Access access : {Access::kRead, Access::kWrite, Access::kReadWrite}) {
        OperandSpec operand = form.spec.operands[i];
        if (operand.access != access) {
          operand.access = access;
          expect_refused(with_operand(form.spec, i, operand),
                         fmt::format("operand {} has access", form.names[i]));
        }
      }
    }
  }
}

TEST(DeclaredForm, WithOtherDtypeIsRefused) {
  for (const DeclaredForm& form : all_declared_forms()) {
    for (size_t i = 0; i < form.names.size() && !form.any_type; ++i) {
      OperandSpec operand = form.spec.operands[i];
      operand.dtype = DType::kI64;
      expect_refused(with_operand(form.spec, i, operand), "");
    }
  }
}

TEST(DeclaredForm, OfIntegersIsRefusedUnlessBytesAreJustMoved) {
  const std::string_view any_dtype[] = {"copy", "fill", "clip_scale", "adamw"};
  const DeclaredForms integers(DType::kI32);
  for (const DeclaredForm& form : integers.list()) {
    if (std::ranges::find(any_dtype, form.spec.op) != std::end(any_dtype)) {
      EXPECT_NO_THROW(check_spec(form.spec));
    } else if (form.spec.op == "cast") {
      expect_refused(form.spec, "x and y must be f32 and bf16, or f64 and f32");
    } else {
      expect_refused(form.spec, "is i32, expected floating point");
    }
  }
}

TEST(DeclaredForm, WithADimensionMoreIsRefused) {
  for (const DeclaredForm& form : all_declared_forms()) {
    for (size_t i = 0; i < form.names.size() && !form.any_type; ++i) {
      OperandSpec operand = form.spec.operands[i];
      operand.shape.push_back(1);
      expect_refused(with_operand(form.spec, i, operand), "");
    }
  }
}

TEST(DeclaredForm, FixesAllSizesThatItDoesNotLeaveFree) {
  for (const DeclaredForm& form : all_declared_forms()) {
    for (size_t i = 0; i < form.names.size(); ++i) {
      for (int axis = 0; axis < form.spec.operands[i].shape.rank(); ++axis) {
        OpSpec spec = form.spec;
        ++spec.operands[i].shape[axis];
        if (std::ranges::find(form.free_sizes, FreeSize{i, axis}) != form.free_sizes.end()) {
          EXPECT_NO_THROW(check_spec(spec)) << form.names[i] << " axis " << axis;
        } else {
          expect_refused(spec, "");
        }
      }
    }
  }
}

TEST(DeclaredForm, WithoutAnAttributeIsRefusedByName) {
  for (const DeclaredForm& form : all_declared_forms()) {
    for (size_t i = 0; i < form.spec.attributes.size(); ++i) {
      OpSpec spec = form.spec;
      spec.attributes.erase(spec.attributes.begin() + static_cast<ptrdiff_t>(i));
      expect_refused(spec, "needs the attribute " + form.spec.attributes[i].name);
    }
  }
}

TEST(DeclaredForm, WithAnUnknownAttributeIsRefused) {
  for (const DeclaredForm& form : all_declared_forms()) {
    OpSpec spec = form.spec;
    spec.attributes.push_back({"colour", int64_t{3}});
    expect_refused(spec, "attributes, expected");
  }
}

TEST(DeclaredForm, WithAnAttributeOfAnotherTypeIsRefusedByName) {
  for (const DeclaredForm& form : all_declared_forms()) {
    for (const Attribute& attribute : form.spec.attributes) {
      expect_refused(with_attribute(form.spec, attribute.name, std::string("text")),
                     "attribute " + attribute.name + " has the wrong type");
    }
  }
}

// What crosses memory is at most all operands; an op that has nothing to write would be removed.
TEST(DeclaredForm, CostsNoMoreThanItsOperandsAndNeverNothing) {
  for (const DeclaredForm& form : all_declared_forms()) {
    const OpCost cost = spec_cost(form.spec);
    const OpCost all = operand_bytes(form.spec);
    EXPECT_GE(cost.flops, 0) << form.spec.op;
    EXPECT_GT(cost.bytes_written, 0) << form.spec.op;
    EXPECT_LE(cost.bytes_written, all.bytes_written) << form.spec.op;
    EXPECT_LE(cost.bytes_read, all.bytes_read) << form.spec.op;
    EXPECT_EQ(cost.comm_bytes > 0, find_op(form.spec.op).op_class == OpClass::kCommunication);
  }
}

}  // namespace
}  // namespace braid
