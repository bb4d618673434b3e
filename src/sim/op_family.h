#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/dtype.h"
#include "ir/op_spec.h"

namespace braid {

/// What bounds an op, hence how its time follows from its shape.
enum class OpFamily : uint8_t {
  kGemm,         ///< one matrix product, also with an activation function behind it
  kAttention,    ///< fused attention and its backward
  kMemoryBound,  ///< everything else that computes or copies on the device
  kHostCopy,     ///< between device and host memory
  kNothing,      ///< keeps a place in the order, and takes no time
  kCommunication,
};

inline constexpr size_t kNumOpFamilies = 6;

/// "matrix products", "attention", "memory-bound", "host copies", "nothing", "communication".
std::string_view family_name(OpFamily family);

/// Throws InternalError if there is no such op.
OpFamily family_of(const OpSpec& spec);

/// Products, attention, and what memory bounds: what multiprocessors are busy with.
bool computes_on_device(OpFamily family);

/// Of an op of family kHostCopy: whether it reads host memory, and how much it moves.
bool copies_to_device(const OpSpec& spec);
int64_t host_copy_bytes(const OpSpec& spec);

/// A product [rows, depth] x [depth, columns].
struct GemmShape {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  DType dtype = DType::kF32;  ///< of the factors

  friend bool operator==(const GemmShape&, const GemmShape&) = default;
};

/// The product that a spec of family kGemm is, or has; the result's rows and columns are those of
/// the operand that the product writes. The spec must have passed `check_spec`.
GemmShape gemm_shape(const OpSpec& spec);

/// Sizes of a spec of family kAttention, which must have passed `check_spec`.
struct AttentionShape {
  int64_t sequences = 0;
  int64_t sequence = 0;  ///< keys that a query may see
  int64_t queries = 0;   ///< per sequence; `sequence`, but for a step over a part of the pairs
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  bool backward = false;
  DType dtype = DType::kF32;
};

AttentionShape attention_shape(const OpSpec& spec);

/// The spec without what cannot change its duration: every floating-point attribute is 0 (scale,
/// epsilon, rates of the optimizer), attributes are in order of their names. Specs that are equal
/// after it take equally long.
OpSpec timing_key(OpSpec spec);

}  // namespace braid
