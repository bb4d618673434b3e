#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/cuda/architecture.h"
#include "backends/cuda/device_needs.h"
#include "backends/cuda/kernels/mamba2_scratch.h"
#include "base/errors.h"
#include "base/expect_error.h"
#include "ops/attributes.h"
#include "ops/mamba2.h"
#include "ops/specs.h"

namespace braid {
namespace {

constexpr int64_t kTokens = 400;  // two sequences of three chunks and a part
constexpr int64_t kChunks = 8;
constexpr int64_t kSteps = 8 * kChunks * 64;  // heads, and rows with those that fill chunks
constexpr int64_t kInner = 8 * 64;
constexpr int64_t kConvolved = kInner + 2 * 2 * 128;
constexpr Mamba2Attributes kAttributes{
    .sequence = 200, .heads = 8, .head_size = 64, .groups = 2, .state = 128, .chunk = 64};

OpSpec mamba2_spec() {
  return {"mamba2",
          to_attributes(kAttributes),
          {read(DType::kBF16, {kTokens, kAttributes.row_elems()}),
           read(DType::kBF16, {kConvolved, 4})}};
}

size_t scratch_bytes(Mamba2Use use, int capability) {
  return Mamba2Scratch(mamba2_spec(), kAttributes, use, capability).bytes;
}

TEST(Mamba2Family, KernelsForHopperAreHoppersAlone) {
  EXPECT_EQ(mamba2_family(90), Mamba2Family::kHopper);
  for (const int capability : {80, 86, 89, 100, 103, 120}) {
    EXPECT_EQ(mamba2_family(capability), Mamba2Family::kAllGpus) << capability;
  }
}

// Hopper's forward keeps states on the multiprocessor, and C B^T of all chunks and groups in f32;
// the other one has the states before all chunks in bf16. The other uses do not differ.
TEST(Mamba2Family, ScratchFollowsTheFamily) {
  constexpr size_t kBoth = 4 * kSteps * 4 + kTokens * kConvolved * 2;
  constexpr size_t kProducts = kChunks * 2 * 64 * 64 * 4;
  constexpr size_t kStates = kChunks * kInner * 128 * 2;
  EXPECT_EQ(scratch_bytes(Mamba2Use::kForward, 90), kBoth + kProducts);
  for (const int capability : {80, 86, 100, 120}) {
    EXPECT_EQ(scratch_bytes(Mamba2Use::kForward, capability), kBoth + kStates) << capability;
    for (const Mamba2Use use : {Mamba2Use::kBackward, Mamba2Use::kStates, Mamba2Use::kStateGrads}) {
      EXPECT_EQ(scratch_bytes(use, capability), scratch_bytes(use, 90)) << capability;
    }
  }
}

TEST(Mamba2Family, MemoryIsCountedForTheGpuInUse) {
  EXPECT_EQ(Mamba2Scratch(mamba2_spec(), kAttributes, Mamba2Use::kForward).family,
            mamba2_family(gpu_capability()));
  for (const int capability : {80, 86, 90, 100, 120}) {
    const AssumedCapability assumed(capability);
    EXPECT_EQ(max_cuda_scratch_bytes(mamba2_spec(), true),
              scratch_bytes(Mamba2Use::kForward, capability))
        << capability;
  }
}

TEST(Mamba2Family, SaysWhichGpusHaveEnoughSharedMemory) {
  constexpr int64_t kKiB = 1024;
  EXPECT_NO_THROW(check_mamba2_shared(163 * kKiB, 163 * kKiB));
  EXPECT_THAT(message_of<ConfigError>([] { check_mamba2_shared(101377, 99 * kKiB); }),
              testing::AllOf(testing::HasSubstr("101377 bytes of shared memory per block"),
                             testing::HasSubstr("this GPU has 101376"),
                             testing::HasSubstr("set runtime.device = \"cpu\"")));
}

}  // namespace
}  // namespace braid
