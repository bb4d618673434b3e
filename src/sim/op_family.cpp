#include "sim/op_family.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "ops/attention.h"
#include "ops/attention_step.h"
#include "ops/attributes.h"
#include "ops/linear_swiglu.h"
#include "ops/op.h"

namespace braid {
namespace {

bool is_attention_step(const OpSpec& spec) {
  return spec.op == "attention_step" || spec.op == "attention_step_backward";
}

AttentionShape shape_of(const AttentionStepAttributes& step, const OpSpec& spec) {
  return {.sequences = spec.operands.at(0).shape[0] / step.sequence,
          .sequence = step.keys,
          .queries = step.queries,
          .heads = step.heads,
          .kv_heads = step.kv_heads,
          .head_size = step.head_size,
          .backward = spec.op == "attention_step_backward",
          .dtype = spec.operands[0].dtype};
}

AttentionShape step_shape(const OpSpec& spec) {
  return spec.op == "attention_step"
             ? shape_of(attributes_of<AttentionStepAttributes>(spec), spec)
             : shape_of(attributes_of<AttentionStepBackwardAttributes>(spec).step, spec);
}

}  // namespace

std::string_view family_name(OpFamily family) {
  constexpr std::array<std::string_view, kNumOpFamilies> kNames = {
      "matrix products", "attention", "memory-bound", "host copies", "nothing", "communication"};
  return kNames[static_cast<size_t>(family)];
}

OpFamily family_of(const OpSpec& spec) {
  if (spec.op == "linear" || spec.op == "linear_dgrad" || spec.op == "linear_wgrad" ||
      is_fused_product(spec)) {
    return OpFamily::kGemm;
  }
  if (spec.op == "attention" || spec.op == "attention_backward" || is_attention_step(spec)) {
    return OpFamily::kAttention;
  }
  if (spec.op == "offload" || spec.op == "reload") {
    return OpFamily::kHostCopy;
  }
  if (spec.op == "undefine") {
    return OpFamily::kNothing;
  }
  return find_op(spec.op).op_class == OpClass::kCommunication ? OpFamily::kCommunication
                                                              : OpFamily::kMemoryBound;
}

bool computes_on_device(OpFamily family) {
  return family == OpFamily::kGemm || family == OpFamily::kAttention ||
         family == OpFamily::kMemoryBound;
}

bool copies_to_device(const OpSpec& spec) {
  return spec.op == "reload";
}

int64_t host_copy_bytes(const OpSpec& spec) {
  const OperandSpec& moved = spec.operands.at(0);
  return moved.shape.num_elems() * static_cast<int64_t>(dtype_bytes(moved.dtype));
}

GemmShape gemm_shape(const OpSpec& spec) {
  if (is_fused_product(spec)) {
    return gemm_shape(unfused(spec).product);
  }
  const Shape& a = spec.operands.at(0).shape;
  const Shape& b = spec.operands.at(1).shape;
  const DType dtype = spec.operands[0].dtype;
  if (spec.op == "linear") {  // x [N,K], w [M,K] -> y [N,M]
    return {.rows = a[0], .columns = b[0], .depth = a[1], .dtype = dtype};
  }
  if (spec.op == "linear_dgrad") {  // dy [N,M], w [M,K] -> dx [N,K]
    return {.rows = a[0], .columns = b[1], .depth = a[1], .dtype = dtype};
  }
  check(spec.op == "linear_wgrad", "op {} is no matrix product", spec.op);
  // x [N,K], dy [N,..] -> dw [M,K]
  return {.rows = spec.operands.at(2).shape[0], .columns = a[1], .depth = a[0], .dtype = dtype};
}

AttentionShape attention_shape(const OpSpec& spec) {
  if (is_attention_step(spec)) {
    return step_shape(spec);
  }
  const auto attributes = attributes_of<AttentionAttributes>(spec);
  return {.sequences = spec.operands.at(0).shape[0] / attributes.sequence,
          .sequence = attributes.sequence,
          .queries = attributes.sequence,
          .heads = attributes.heads,
          .kv_heads = attributes.kv_heads,
          .head_size = attributes.head_size,
          .backward = spec.op == "attention_backward",
          .dtype = spec.operands[0].dtype};
}

OpSpec timing_key(OpSpec spec) {
  for (Attribute& attribute : spec.attributes) {
    if (double* number = std::get_if<double>(&attribute.value)) {
      *number = 0.0;
    }
  }
  std::sort(spec.attributes.begin(), spec.attributes.end(),
            [](const Attribute& a, const Attribute& b) { return a.name < b.name; });
  return spec;
}

}  // namespace braid
