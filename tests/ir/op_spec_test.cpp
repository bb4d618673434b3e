#include "ir/op_spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace braid {
namespace {

OpSpec spec_with(AttributeValue value) {
  return {"op", {{"a", std::move(value)}}, {{DType::kF32, Access::kRead, {4}}}};
}

TEST(OpSpec, EqualSpecsGetOneIdInOrderOfFirstUse) {
  SpecTable table;
  EXPECT_EQ(table.intern(spec_with(true)).value, 0u);
  EXPECT_EQ(table.intern(spec_with(int64_t{1})).value, 1u);
  EXPECT_EQ(table.intern(spec_with(true)).value, 0u);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(table[SpecId(size_t{1})], spec_with(int64_t{1}));
}

TEST(OpSpec, EveryPartTellsSpecsApart) {
  const OpSpec base = spec_with(1.0);
  SpecTable table;
  table.intern(base);
  const auto is_new = [&](auto&& change) {
    OpSpec changed = base;
    change(changed);
    return table.intern(changed).index() + 1 == table.size();
  };
  EXPECT_TRUE(is_new([](OpSpec& s) { s.op += "2"; }));
  EXPECT_TRUE(is_new([](OpSpec& s) { s.attributes[0].name += "2"; }));
  EXPECT_TRUE(is_new([](OpSpec& s) { s.attributes[0].value = int64_t{1}; }));
  EXPECT_TRUE(is_new([](OpSpec& s) { s.attributes[0].value = std::string("1"); }));
  EXPECT_TRUE(is_new([](OpSpec& s) { s.attributes.clear(); }));
  EXPECT_TRUE(is_new([](OpSpec& s) { s.operands[0].dtype = DType::kBF16; }));
  EXPECT_TRUE(is_new([](OpSpec& s) { s.operands[0].access = Access::kWrite; }));
  EXPECT_TRUE(is_new([](OpSpec& s) { s.operands[0].shape = {2, 2}; }));
  EXPECT_TRUE(is_new([](OpSpec& s) { s.operands.push_back(s.operands[0]); }));
  EXPECT_EQ(table.size(), 10u);
}

TEST(OpSpec, EqualDoublesAreInterchangeable) {
  SpecTable table;
  const SpecId zero = table.intern(spec_with(0.0));
  EXPECT_NE(table.intern(spec_with(-0.0)), zero);
  const SpecId nan = table.intern(spec_with(std::nan("1")));
  EXPECT_EQ(table.intern(spec_with(std::numeric_limits<double>::quiet_NaN())), nan);
  EXPECT_EQ(table.intern(spec_with(-std::nan("2"))), nan);
}

TEST(OpSpec, FindsAttributesByName) {
  const OpSpec spec = spec_with(std::string("text"));
  ASSERT_NE(spec.find_attribute("a"), nullptr);
  EXPECT_EQ(std::get<std::string>(*spec.find_attribute("a")), "text");
  EXPECT_EQ(spec.find_attribute("b"), nullptr);
}

}  // namespace
}  // namespace braid
