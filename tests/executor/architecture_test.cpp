#include "backends/cuda/architecture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "backends/cuda/kernels/scaled_product.h"
#include "base/errors.h"
#include "base/expect_error.h"
#include "ops/attributes.h"
#include "ops/scaled_linear.h"
#include "ops/specs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Source: CUDA programming guide, "Binary compatibility": code for x.y runs on x.z with z >= y.
TEST(Architecture, MachineCodeRunsOnLaterMinorVersionsUnlessItIsOfOneArchitecture) {
  struct Case {
    const char* architecture;
    int capability;
    bool runs;
  };
  for (const Case& it : {Case{"80", 80, true},
                         {"80", 86, true},
                         {"80", 89, true},
                         {"86", 80, false},
                         {"80", 90, false},
                         {"90a", 90, true},
                         {"90a", 100, false},
                         {"100", 100, true},
                         {"100", 103, true},
                         {"100", 120, false},
                         {"103", 100, false},
                         {"120", 121, true}}) {
    EXPECT_EQ(runs_on(it.architecture, it.capability), it.runs)
        << it.architecture << " on " << it.capability;
  }
}

TEST(Architecture, ThisBuildRunsOnWhatItWasCompiledFor) {
  for (const std::string& name : cuda_architectures()) {
    EXPECT_TRUE(has_kernels_for(std::stoi(name))) << name;
  }
  EXPECT_EQ(describe_architectures().empty(), cuda_architectures().empty());
}

TEST(Architecture, RefusesAGpuWithoutKernelsAndSaysHowToBuildThem) {
  const int before = gpu_capability();
  EXPECT_THAT(message_of<DeviceError>([] { use_gpu(3, 75); }),
              AllOf(HasSubstr("GPU 3 has compute capability 7.5; this build has kernels for "),
                    HasSubstr("braid none below 8.0")));
  EXPECT_THAT(message_of<DeviceError>([] { use_gpu(0, 110); }),
              HasSubstr("build with -D BRAID_CUDA_ARCHITECTURES=110"));
  EXPECT_EQ(gpu_capability(), before);
}

TEST(Architecture, ACapabilityIsAssumedForAWhile) {
  const int before = gpu_capability();
  {
    const AssumedCapability outer(80);
    EXPECT_EQ(gpu_capability(), 80);
    {
      const AssumedCapability inner(120);
      EXPECT_EQ(gpu_capability(), 120);
    }
    EXPECT_EQ(gpu_capability(), 80);
  }
  EXPECT_EQ(gpu_capability(), before);
}

TEST(Architecture, FactorsWithoutATensorCoreProductAreConverted) {
  for (const int64_t block : {0, 32, 128}) {
    const OpSpec spec{
        "scaled_linear",
        to_attributes(ScaledLinearAttributes{.block = block}),
        {read(DType::kF8E4M3, {256, 384}), read(DType::kF32, {1}), read(DType::kF8E4M3, {256, 384}),
         read(DType::kF32, {1}), write(DType::kBF16, {256, 256})}};
    EXPECT_EQ(multiplies_fp8(spec, block, 80), false) << block;
    EXPECT_EQ(multiplies_fp8(spec, block, 89), block == 0) << block;
    EXPECT_EQ(multiplies_fp8(spec, block, 90), block != 32) << block;
    EXPECT_EQ(multiplies_fp8(spec, block, 100), block == 0) << block;
  }
}

}  // namespace
}  // namespace braid
