#pragma once

#include <cstdint>
#include <string_view>

#include "ir/op_spec.h"
#include "ops/op_traits.h"

namespace braid {

/// "matrix products", "attention", "memory-bound", "host copies", "nothing", "communication".
std::string_view family_name(OpFamily family);

/// Throws InternalError if there is no such op.
OpFamily family_of(const OpSpec& spec);

/// Products, attention, and memory-bound ops: those that run on multiprocessors.
bool computes_on_device(OpFamily family);

/// The direction of an op of family kHostCopy.
HostCopy host_copy_of(const OpSpec& spec);
int64_t host_copy_bytes(const OpSpec& spec);

/// The product of a spec of family kGemm; the rows and columns are those of the operand that the
/// product writes. The spec must have passed `check_spec`.
GemmShape gemm_shape(const OpSpec& spec);

/// Whether a product is of groups, of which there may be one: its rows or its depth end where an
/// operand says.
bool is_grouped_product(const OpSpec& spec);

/// Sizes of a spec of family kAttention, which must have passed `check_spec`.
AttentionShape attention_shape(const OpSpec& spec);

/// The spec without attributes that cannot change its duration: every floating-point attribute is 0
/// (scale, epsilon, rates of the optimizer), there is no tally and no scaling of
/// rotary frequencies, and attributes are sorted by name.
/// Specs with equal keys take equally long.
OpSpec timing_key(OpSpec spec);

}  // namespace braid
