#include "ops/graph.h"

#include <array>

#include "base/expect_error.h"
#include "ops/activation.h"
#include "ops/attributes.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

const Value kWeight{.name = "w", .dtype = DType::kF32, .shape = {4, 4}, .kind = ValueKind::kParam};

TEST(NamedValue, IsMadeOnce) {
  StageGraph graph;
  GraphBuilder builder(graph);
  const ValueId first = builder.named_value(kWeight);
  EXPECT_EQ(builder.named_value(kWeight), first);
  EXPECT_EQ(graph.values.size(), 1u);
  EXPECT_EQ(graph.value(first), kWeight);
}

TEST(NamedValue, RefusesASecondType) {
  StageGraph graph;
  GraphBuilder builder(graph);
  builder.named_value(kWeight);
  Value other_dtype = kWeight;
  other_dtype.dtype = DType::kBF16;
  Value other_shape = kWeight;
  other_shape.shape = {4};
  Value other_kind = kWeight;
  other_kind.kind = ValueKind::kInput;
  for (const Value& other : {other_dtype, other_shape, other_kind}) {
    EXPECT_EQ(message_of<InternalError>([&] { builder.named_value(other); }),
              "value w is used with two different types");
  }
}

TEST(Scope, PrefixesActivationsAndSitesButNotNamedValues) {
  StageGraph graph;
  GraphBuilder builder(graph);
  EXPECT_EQ(builder.scoped("x"), "x");
  builder.set_scope(3, "layers.3");
  EXPECT_EQ(builder.scoped("x"), "layers.3.x");
  const ValueId x = builder.add_activation("x", DType::kF32, {2, 4});
  EXPECT_EQ(graph.value(x), (Value{.name = "layers.3.x",
                                   .dtype = DType::kF32,
                                   .shape = {2, 4},
                                   .kind = ValueKind::kActivation}));
  EXPECT_EQ(graph.value(builder.named_value(kWeight)).name, "w");
  gelu(builder, x, "mlp.gelu");
  const Node& node = graph.forward.front();
  EXPECT_EQ(node.site, "layers.3.mlp.gelu");
  EXPECT_EQ(node.layer, 3);
  EXPECT_EQ(node.phase, Phase::kForward);
}

TEST(AddNode, TakesOperandTypesFromTheValues) {
  StageGraph graph;
  GraphBuilder builder(graph);
  const ValueId x = builder.add_activation("x", DType::kBF16, {2, 4});
  const ValueId y = gelu(builder, x, "gelu");
  const Node& node = graph.forward.front();
  EXPECT_EQ(node.operands, (std::vector{x, y}));
  EXPECT_EQ(node.spec.op, "gelu");
  EXPECT_EQ(node.spec.operands, (std::vector{OperandSpec{DType::kBF16, Access::kRead, {2, 4}},
                                             OperandSpec{DType::kBF16, Access::kWrite, {2, 4}}}));
  EXPECT_EQ(graph.value(y).name, "gelu");
}

TEST(MakeNode, RefusesWhatTheOpRefuses) {
  StageGraph graph;
  GraphBuilder builder(graph);
  const ValueId x = builder.add_activation("x", DType::kF32, {2, 4});
  const ValueId y = builder.add_activation("y", DType::kF32, {2, 5});
  EXPECT_THAT(message_of<InternalError>([&] {
                make_node(graph, "gelu", {}, std::array{Operand{x}, Operand{y, Access::kWrite}});
              }),
              HasSubstr("op gelu: operand y is f32 [2,5], expected f32 [2,4]"));
  EXPECT_THROW(builder.add_node("no_such_op", {}, {}, "site"), InternalError);
  EXPECT_THROW(builder.add_node("gelu", {{"colour", true}},
                                std::array{Operand{x}, Operand{x, Access::kWrite}}, "site"),
               InternalError);
}

}  // namespace
}  // namespace braid
