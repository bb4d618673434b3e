#pragma once

#include <optional>
#include <string>

#include "backends/cuda/kernels/mamba2_scratch.h"
#include "support/cuda_kernel_checks.h"
#include "support/mamba2_cases.h"

/// What tests of the kernels of mamba2 and of its sections share.
namespace braid {

/// Both families of kernels where the GPU is Hopper's, which runs both; elsewhere only its own. The
/// family is chosen as for other GPUs: by the capability, here an assumed one.
class Mamba2FamilyTest : public CudaKernelTest, public testing::WithParamInterface<Mamba2Family> {
 protected:
  void SetUp() override {
    CudaKernelTest::SetUp();
    if (IsSkipped()) {
      return;
    }
    if (GetParam() == Mamba2Family::kHopper) {
      if (!runs_hopper_kernels(gpu_capability())) {
        GTEST_SKIP() << "kernels for Hopper, which this GPU is not";
      }
    } else if (runs_hopper_kernels(gpu_capability())) {
      constexpr int kA100 = 80;
      assumed_.emplace(kA100);
    }
  }

 private:
  std::optional<AssumedCapability> assumed_;
};

/// For INSTANTIATE_TEST_SUITE_P.
inline auto mamba2_families() {
  return testing::Values(Mamba2Family::kHopper, Mamba2Family::kAllGpus);
}
inline std::string mamba2_family_name(const testing::TestParamInfo<Mamba2Family>& family) {
  return family.param == Mamba2Family::kHopper ? "Hopper" : "AllGpus";
}

/// A whole chunk, its neighbours in length, several sequences that end within a chunk, heads and
/// states smaller than their tiles, rows that no vector access fits, more heads in a group than a
/// block has, limits of dt that hold, weights of other heads around those that are used, a norm of
/// more than 2,048 channels in more rows than blocks.
inline std::vector<Mamba2Case> mamba2_cuda_cases() {
  return {
      {{.sequence = 64, .heads = 1, .head_size = 64, .groups = 1, .state = 128, .chunk = 64}, 1, 4},
      {{.sequence = 1,
        .heads = 1,
        .head_size = 8,
        .groups = 1,
        .state = 8,
        .chunk = 1,
        .epsilon = 1.0},
       3,
       4},
      {{.sequence = 63, .heads = 3, .head_size = 8, .groups = 1, .state = 16, .chunk = 7}, 2, 2},
      {{.sequence = 65, .heads = 4, .head_size = 64, .groups = 2, .state = 64, .chunk = 128}, 2, 3},
      {{.sequence = 200,
        .heads = 8,
        .head_size = 64,
        .groups = 2,
        .state = 128,
        .chunk = 64,
        .norm_groups = 2},
       2,
       4},
      {{.sequence = 150, .heads = 37, .head_size = 16, .groups = 1, .state = 24, .chunk = 64},
       1,
       4},
      {{.sequence = 129,
        .heads = 6,
        .head_size = 24,
        .groups = 3,
        .state = 72,
        .chunk = 64,
        .norm_groups = 6,
        .dt_min = 0.1,
        .dt_max = 0.4},
       1,
       4},
      {{.sequence = 320,
        .heads = 16,
        .head_size = 64,
        .groups = 8,
        .state = 128,
        .chunk = 256,
        .norm_groups = 8},
       1,
       4},
      {{.sequence = 130,
        .heads = 8,
        .head_size = 32,
        .groups = 2,
        .state = 64,
        .chunk = 64,
        .norm_groups = 2,
        .weights = {.count = 4, .index = 2}},
       2,
       4},
      {{.sequence = 300, .heads = 36, .head_size = 64, .groups = 1, .state = 16, .chunk = 64},
       1,
       4}};
}

/// The norm of the error is at most `limit` of the norm of the values.
inline void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                        double limit, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  EXPECT_TRUE(std::sqrt(error) <= limit * std::sqrt(norm))
      << what << ": error " << std::sqrt(error) << " of " << std::sqrt(norm);
}

/// Columns [begin, end) of rows.
inline std::vector<double> columns(const std::vector<double>& rows, int64_t width, int64_t begin,
                                   int64_t end) {
  std::vector<double> part;
  for (int64_t row = 0; row < static_cast<int64_t>(rows.size()) / width; ++row) {
    part.insert(part.end(), rows.begin() + row * width + begin, rows.begin() + row * width + end);
  }
  return part;
}

/// The parts of zxbcdt apart, as their sizes differ by orders of magnitude.
inline void expect_near_by_part(const Mamba2Attributes& a, const std::vector<double>& actual,
                                const std::vector<double>& expected, double limit,
                                const std::string& what) {
  const int64_t factor = a.groups * a.state;
  const std::pair<const char*, int64_t> parts[] = {
      {"z", a.inner()}, {"x", a.inner()}, {"B", factor}, {"C", factor}, {"dt", a.heads}};
  int64_t begin = 0;
  for (const auto& [name, size] : parts) {
    expect_near(columns(actual, a.row_elems(), begin, begin + size),
                columns(expected, a.row_elems(), begin, begin + size), limit,
                fmt::format("{} {}", what, name));
    begin += size;
  }
}

}  // namespace braid
