#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/architecture.h"
#include "ir/op_spec.h"
#include "ops/mamba2.h"

/// Limits of the CUDA kernels of mamba2 and mamba2_backward, and the memory between them.
/// Independent of CUDA, so that memory can be counted without a device.
namespace braid {

inline constexpr int kSsdChunk = 64;     ///< rows that are computed together
inline constexpr int kSsdHeads = 16;     ///< heads of a block of threads, at most
inline constexpr int kSsdHeadSize = 64;  ///< elements of a head, at most
inline constexpr int kSsdState = 128;    ///< of the state per element of a head, at most
inline constexpr int kConvRows = 64;     ///< rows of a thread of the convolution
/// Channels that are normalised together, at most: 512 threads with 4 vectors of 8.
inline constexpr int64_t kMaxMamba2NormWidth = 16384;

/// The kernels over chunks: Hopper's multiply by warpgroups (`wgmma`), which no other GPU can, in
/// up to 221 KiB of shared memory per block. The others multiply by warps (`mma.sync`), in up to 96
/// KiB in the forward and 162 KiB in the backward (113 KiB with states of up to 64).
enum class Mamba2Family : uint8_t { kAllGpus, kHopper };

/// The one place that chooses.
constexpr Mamba2Family mamba2_family(int capability) {
  return runs_hopper_kernels(capability) ? Mamba2Family::kHopper : Mamba2Family::kAllGpus;
}

/// Throws ConfigError naming key, value, limit and a setting that the kernels have.
void check_mamba2_limits(const OpSpec& spec, const Mamba2Attributes& attributes);

/// Throws ConfigError if a block of a kernel needs more shared memory than the GPU has for one.
void check_mamba2_shared(int64_t needed_bytes, int64_t limit_bytes);

/// Blocks of rows in the convolution, and in the gated norm's backward.
int64_t mamba2_conv_tiles(int64_t tokens, int64_t sequence);
int64_t mamba2_norm_blocks(int64_t tokens);

/// The op that needs scratch: mamba2 and mamba2_section, their backward, mamba2_section_states, or
/// mamba2_section_state_grads.
enum class Mamba2Use : uint8_t { kForward, kBackward, kStates, kStateGrads };

/// Where each buffer of Mamba2Args (kernels/mamba2.cuh) begins; those that the op or the family
/// does not use are empty.
struct Mamba2Scratch {
  Mamba2Family family;
  size_t dt = 0;
  size_t decay = 0;
  size_t to_end = 0;
  size_t from_begin = 0;
  size_t xbc = 0;
  size_t products = 0;  ///< of Hopper's forward
  size_t states = 0;    ///< of the other forward, and of the backward
  // Of the backward.
  size_t dy = 0;
  size_t dx = 0;
  size_t d_states = 0;
  size_t d_factors = 0;
  size_t d_decay = 0;
  size_t d_dt = 0;
  size_t dy_x = 0;
  size_t partials = 0;

  size_t bytes = 0;

  Mamba2Scratch(const OpSpec& spec, const Mamba2Attributes& attributes, Mamba2Use use,
                int capability = gpu_capability());
};

}  // namespace braid
