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

void check_size(std::string_view key, int64_t value, int64_t limit) {
  if (value % 8 != 0 || value > limit) {
    const int64_t nearest = std::clamp<int64_t>((value + 4) / 8 * 8, 8, limit);
    throw_config_error(
        "model.{} = {}: layers with states run on GPUs with multiples of 8 up to {}; set {}, or "
        "runtime.device = \"cpu\"",
        key, value, limit, nearest);
  }
}

}  // namespace

void check_mamba2_limits(const OpSpec& spec, const Mamba2Attributes& attributes) {
  if (const DType dtype = spec.operands[0].dtype; dtype != DType::kBF16) {
    throw_config_error(
        "layers with states run on GPUs in bfloat16, not {}; set train.dtype = \"bfloat16\", or "
        "runtime.device = \"cpu\"",
        dtype_name(dtype));
  }
  check_size("mamba_head_dim", attributes.head_size, kSsdHeadSize);
  check_size("ssm_state_size", attributes.state, kSsdState);
  constexpr int64_t kLeastTaps = 2;
  constexpr int64_t kMostTaps = 4;
  const int64_t taps = spec.operands[1].shape[1];
  if (taps < kLeastTaps || taps > kMostTaps) {
    throw_config_error(
        "model.conv_kernel = {}: layers with states run on GPUs with {} to {} taps; set {}, or "
        "runtime.device = \"cpu\"",
        taps, kLeastTaps, kMostTaps, std::clamp(taps, kLeastTaps, kMostTaps));
  }
  const int64_t width = attributes.inner() / attributes.norm_groups;
  if (width > kMaxMamba2NormWidth) {
    throw_config_error(
        "model.mamba_n_groups: {} channels of a group are normalised together, and GPUs do up to "
        "{}; set more groups, or runtime.device = \"cpu\"",
        width, kMaxMamba2NormWidth);
  }
}

void check_mamba2_shared(int64_t needed_bytes, int64_t limit_bytes) {
  if (needed_bytes > limit_bytes) {
    throw_config_error(
        "layers with states need {} bytes of shared memory per block here, and this GPU has {}; "
        "train them on one with 163 KiB or more (A100, H100, B200), or set runtime.device = "
        "\"cpu\"",
        needed_bytes, limit_bytes);
  }
}

int64_t mamba2_conv_tiles(int64_t tokens, int64_t sequence) {
  return tokens / sequence * ceil_div(sequence, kConvRows);
}

int64_t mamba2_norm_blocks(int64_t tokens) {
  constexpr int64_t kBlocks = 264;  // two on each of 132 multiprocessors
  return std::min(tokens, kBlocks);
}

Mamba2Scratch::Mamba2Scratch(const OpSpec& spec, const Mamba2Attributes& a, Mamba2Use use,
                             int capability)
    : family(mamba2_family(capability)) {
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
  if (use == Mamba2Use::kStateGrads || use == Mamba2Use::kBackward) {
    add(dy, tokens * a.inner(), kHalf);
  }
  if (use == Mamba2Use::kStates || use == Mamba2Use::kStateGrads) {
    return;
  }
  if (use == Mamba2Use::kForward && family == Mamba2Family::kHopper) {
    add(products, a.groups * chunks * kSsdChunk * kSsdChunk, kFloat);
    return;
  }
  add(states, chunks * a.inner() * a.state, kHalf);
  if (use == Mamba2Use::kForward) {
    return;
  }
  const int64_t parts = ceil_div(a.heads / a.groups, kSsdHeads);
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
