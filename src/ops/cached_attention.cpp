#include "ops/cached_attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/attributes.h"

namespace braid {
namespace {

constexpr size_t kCounts = 2;
constexpr size_t kKeys = 3;

void check_cached_attention(const OpSpec& spec) {
  const auto a = attributes_of<CachedAttentionAttributes>(spec);
  OperandChecker operands(spec);
  const OperandSpec& qkv = operands.next_floating("qkv", Access::kRead, 2);
  operands.require(a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0,
                   "heads must be a positive multiple of kv_heads");
  operands.require(a.head_size > 0 && qkv.shape[1] == (a.heads + 2 * a.kv_heads) * a.head_size,
                   "a row of qkv must hold heads + 2 kv_heads heads");
  const OperandSpec& begins = operands.next("begins", Access::kRead, 1);
  operands.require(begins.dtype == DType::kI32, "begins must be i32");
  operands.require(begins.shape[0] > 0 && qkv.shape[0] % begins.shape[0] == 0,
                   "rows must be a multiple of the sequences");
  operands.expect("counts", Access::kRead, DType::kI32, begins.shape);
  const OperandSpec& keys = operands.next_floating("keys", Access::kReadWrite, 3);
  operands.require(keys.dtype == qkv.dtype && keys.shape[0] == begins.shape[0] &&
                       keys.shape[2] == a.kv_heads * a.head_size,
                   "keys must be [sequences, capacity, kv_heads head_size] of the dtype of qkv");
  operands.require(keys.shape[1] >= qkv.shape[0] / begins.shape[0],
                   "the capacity must hold the rows of a sequence");
  operands.expect("values", Access::kReadWrite, qkv.dtype, keys.shape);
  operands.expect("out", Access::kWrite, qkv.dtype, {qkv.shape[0], a.heads * a.head_size});
  operands.require(a.window.window >= 0, "window must not be negative");
  operands.done();
}

/// Of caches that are full by half, or by a window if that is less: how full they are is data.
OpCost cached_attention_cost(const OpSpec& spec) {
  const auto a = attributes_of<CachedAttentionAttributes>(spec);
  const auto rows = static_cast<double>(spec.operands[0].shape[0]);
  const auto capacity = static_cast<double>(spec.operands[kKeys].shape[1]);
  const double full =
      a.window.is_on() ? std::min(0.5, static_cast<double>(a.window.window) / capacity) : 0.5;
  const auto new_bytes = 2 * rows * static_cast<double>(a.kv_heads * a.head_size) *
                         static_cast<double>(dtype_bytes(spec.operands[0].dtype));
  return {.flops = 2 * 2.0 * rows * static_cast<double>(a.heads * a.head_size) * full * capacity,
          .bytes_read = size_bytes(spec.operands[0]) + 2 * full * size_bytes(spec.operands[kKeys]),
          .bytes_written = size_bytes(spec.operands.back()) + new_bytes};
}

IntegerNeed spans_in_cache(const OpSpec& spec, size_t operand) {
  const int64_t rows = spec.operands[0].shape[0] / spec.operands[kCounts].shape[0];
  return {.limit = 1 + (operand == kCounts ? rows : spec.operands[kKeys].shape[1] - rows)};
}

}  // namespace

const OpDefinition kCachedAttentionOp{
    .name = "cached_attention",
    .summary = "Appends keys and values to caches and attends to all tokens in them.",
    .family = OpFamily::kMemoryBound,
    .kind = OpKind::kAttention,
    .check = check_cached_attention,
    .cost = cached_attention_cost,
    .recompute = Recompute::kNone,
    .has_inner_products = true,
    .split = kNeverSplit,
    .integers = spans_in_cache,
};

ValueId cached_attention(GraphBuilder& builder, ValueId qkv, const CacheOperands& cache,
                         CachedAttentionAttributes attributes, std::string_view site) {
  const Value input = builder.value(qkv);
  if (attributes.scale == 0.0) {
    attributes.scale = 1.0 / std::sqrt(static_cast<double>(attributes.head_size));
  }
  const auto add_cache = [&](std::string_view name) {
    return builder.add_value(
        {.name = builder.scoped(fmt::format("{}.{}", site, name)),
         .dtype = input.dtype,
         .shape = {cache.sequences, cache.capacity, attributes.kv_heads * attributes.head_size},
         .kind = ValueKind::kCache});
  };
  const ValueId keys = add_cache("keys");
  const ValueId values = add_cache("values");
  const ValueId out = builder.add_activation(
      site, input.dtype, {input.shape[0], attributes.heads * attributes.head_size});
  builder.add_node("cached_attention", to_attributes(attributes),
                   std::array{Operand{qkv}, Operand{cache.begins}, Operand{cache.counts},
                              Operand{keys, Access::kReadWrite},
                              Operand{values, Access::kReadWrite}, Operand{out, Access::kWrite}},
                   site);
  return out;
}

}  // namespace braid
