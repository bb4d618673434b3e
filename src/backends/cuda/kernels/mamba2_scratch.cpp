#include "backends/cuda/kernels/mamba2_scratch.h"

#include <algorithm>

#include "base/errors.h"

namespace braid {
namespace {

constexpr int64_t kHalf = 2;  ///< bytes of bf16
constexpr int64_t kFloat = 4;
constexpr int64_t kStepSums = 3;  ///< of dt_bias, a_log and skip

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

void check_size(const OpSpec& spec, std::string_view name, int64_t value, int64_t limit) {
  check(value % 8 == 0 && value <= limit,
        "op {}: {} = {}; its CUDA kernels have multiples of 8 up to {}", spec.op, name, value,
        limit);
}

}  // namespace

void check_mamba2_limits(const OpSpec& spec, const Mamba2Attributes& attributes) {
  const DType dtype = spec.operands[0].dtype;
  check(dtype == DType::kBF16, "op {}: no CUDA kernel for {}", spec.op, dtype_name(dtype));
  check_size(spec, "head_size", attributes.head_size, kSsdHeadSize);
  check_size(spec, "state", attributes.state, kSsdState);
  const int64_t taps = spec.operands[1].shape[1];
  check(taps >= 2 && taps <= 4, "op {}: {} taps; its CUDA kernels have 2 to 4", spec.op, taps);
  const int64_t width = attributes.inner() / attributes.norm_groups;
  check(width <= kMaxMamba2NormWidth,
        "op {}: {} channels are normalised together; its CUDA kernels hold up to {}", spec.op,
        width, kMaxMamba2NormWidth);
}

int64_t mamba2_conv_tiles(int64_t tokens, int64_t sequence) {
  return tokens / sequence * ceil_div(sequence, kConvRows);
}

int64_t mamba2_norm_blocks(int64_t tokens) {
  constexpr int64_t kBlocks = 264;  // two on each of 132 multiprocessors
  return std::min(tokens, kBlocks);
}

Mamba2Scratch::Mamba2Scratch(const OpSpec& spec, const Mamba2Attributes& a, bool backward) {
  const auto add = [&](size_t& at, int64_t elems, int64_t elem_bytes) {
    constexpr int64_t kAlignment = 256;
    at = bytes;
    bytes += static_cast<size_t>(ceil_div(elems * elem_bytes, kAlignment) * kAlignment);
  };
  const int64_t tokens = spec.operands[0].shape[0];
  const int64_t taps = spec.operands[1].shape[1];
  const int64_t factors = 2 * a.groups * a.state;  // elements of B and C in a row
  const int64_t chunks = tokens / a.sequence * ceil_div(a.sequence, kSsdChunk);
  const int64_t steps = a.heads * chunks * kSsdChunk;
  add(dt, steps, kFloat);
  add(decay, steps, kFloat);
  add(to_end, steps, kFloat);
  add(from_begin, steps, kFloat);
  add(xbc, tokens * a.convolved(), kHalf);
  add(states, chunks * a.inner() * a.state, kHalf);
  if (!backward) {
    return;
  }
  const int64_t parts = ceil_div(a.heads / a.groups, kSsdHeads);
  add(dy, tokens * a.inner(), kHalf);
  add(dx, tokens * a.inner(), kHalf);
  add(d_states, chunks * a.inner() * a.state, kHalf);
  add(d_factors, parts * tokens * factors, kFloat);
  add(d_decay, steps, kFloat);
  add(d_dt, steps, kFloat);
  add(dy_x, steps, kFloat);
  add(partials,
      std::max({mamba2_conv_tiles(tokens, a.sequence) * a.convolved() * (taps + 1),
                kStepSums * chunks * a.heads, mamba2_norm_blocks(tokens) * a.inner()}),
      kFloat);
}

}  // namespace braid
