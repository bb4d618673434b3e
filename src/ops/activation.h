#pragma once

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// swiglu: gate_up [N,2F] -> y [N,F]; a row holds gate_0, up_0, gate_1, up_1, ..., so that the two
/// inputs of an element of y are adjacent, also in tiles of the product before it; y_i =
/// silu(gate_i) * up_i. swiglu_backward: gate_up [N,2F], dy [N,F] -> d_gate_up [N,2F]. geglu and
/// geglu_backward: the same with gelu(gate_i) * up_i, as in Gemma. gelu: x
/// [N,F] -> y [N,F], the tanh approximation 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as in
/// GPT-2. relu2: x [N,F] -> y [N,F], max(x, 0)^2, as in Nemotron. gelu_backward, relu2_backward: x
/// [N,F], dy [N,F] -> dx [N,F]. No attributes.

extern const OpDefinition kSwigluOp;
extern const OpDefinition kSwigluBackwardOp;
extern const OpDefinition kGegluOp;
extern const OpDefinition kGegluBackwardOp;
extern const OpDefinition kGeluOp;
extern const OpDefinition kGeluBackwardOp;
extern const OpDefinition kRelu2Op;
extern const OpDefinition kRelu2BackwardOp;

ValueId swiglu(GraphBuilder& builder, ValueId gate_up, std::string_view site);
ValueId geglu(GraphBuilder& builder, ValueId gate_up, std::string_view site);
ValueId gelu(GraphBuilder& builder, ValueId x, std::string_view site);
ValueId relu2(GraphBuilder& builder, ValueId x, std::string_view site);

}  // namespace braid
