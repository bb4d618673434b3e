#include "sim/op_family.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/errors.h"
#include "ops/integer_values.h"
#include "ops/op.h"
#include "ops/rope_scaling.h"

namespace braid {

std::string_view family_name(OpFamily family) {
  constexpr std::array<std::string_view, kNumOpFamilies> kNames = {
      "matrix products", "attention", "memory-bound", "host copies", "nothing", "communication"};
  return kNames[static_cast<size_t>(family)];
}

OpFamily family_of(const OpSpec& spec) {
  return *find_op(spec.op).family;
}

bool computes_on_device(OpFamily family) {
  return family == OpFamily::kGemm || family == OpFamily::kAttention ||
         family == OpFamily::kMemoryBound;
}

HostCopy host_copy_of(const OpSpec& spec) {
  const OpDefinition& op = find_op(spec.op);
  check(op.host_copy.has_value(), "op {} copies nothing to or from the host", spec.op);
  return *op.host_copy;
}

int64_t host_copy_bytes(const OpSpec& spec) {
  const OperandSpec& moved = spec.operands.at(0);
  return moved.shape.num_elems() * static_cast<int64_t>(dtype_bytes(moved.dtype));
}

GemmShape gemm_shape(const OpSpec& spec) {
  const OpDefinition& op = find_op(spec.op);
  check(op.gemm_shape != nullptr, "op {} is no matrix product", spec.op);
  return op.gemm_shape(spec);
}

bool is_grouped_product(const OpSpec& spec) {
  if (family_of(spec) != OpFamily::kGemm) {
    return false;
  }
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    if (spec.operands[i].dtype == DType::kI32 &&
        integer_need(spec, i).rule == IntegerRule::kOffsets) {
      return true;
    }
  }
  return false;
}

AttentionShape attention_shape(const OpSpec& spec) {
  const OpDefinition& op = find_op(spec.op);
  check(op.attention_shape != nullptr, "op {} is no attention", spec.op);
  return op.attention_shape(spec);
}

OpSpec timing_key(OpSpec spec) {
  spec = without_rope_scaling(without_tally(std::move(spec)));
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
