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

/// Products, attention, and what memory bounds: what multiprocessors are busy with.
bool computes_on_device(OpFamily family);

/// Of an op of family kHostCopy.
HostCopy host_copy_of(const OpSpec& spec);
int64_t host_copy_bytes(const OpSpec& spec);

/// The product that a spec of family kGemm is, or has; the result's rows and columns are those of
/// the operand that the product writes. The spec must have passed `check_spec`.
GemmShape gemm_shape(const OpSpec& spec);

/// Sizes of a spec of family kAttention, which must have passed `check_spec`.
AttentionShape attention_shape(const OpSpec& spec);

/// The spec without what cannot change its duration: every floating-point attribute is 0 (scale,
/// epsilon, rates of the optimizer), attributes are in order of their names. Specs that are equal
/// after it take equally long.
OpSpec timing_key(OpSpec spec);

}  // namespace braid
