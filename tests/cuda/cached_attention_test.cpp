#include "support/cached_cases.h"
#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using CachedAttentionCudaTest = CudaKernelTest;

std::vector<CachedAttentionCase> all_cases() {
  std::vector<CachedAttentionCase> cases = awkward_cached_attention_cases();
  cases.push_back({{.heads = 8, .kv_heads = 2, .head_size = 128, .scale = 0.09}, 4, 1, 700});
  cases.push_back({{.heads = 2, .kv_heads = 2, .head_size = 192, .scale = 0.07}, 2, 3, 65});
  cases.push_back({{.heads = 1, .kv_heads = 1, .head_size = 320, .scale = 0.05}, 1, 2, 40});
  return cases;
}

/// Each sequence has another length, and the last one a row of padding if there are several.
KernelCase filled(const CachedAttentionCase& c, DType dtype) {
  KernelCase kernel = c.make(dtype);
  std::vector<double> begins;
  std::vector<double> counts;
  for (int64_t sequence = 0; sequence < c.sequences; ++sequence) {
    begins.push_back(static_cast<double>((c.capacity - c.rows) * (sequence + 1) / c.sequences));
    counts.push_back(
        static_cast<double>(sequence + 1 == c.sequences && c.rows > 1 ? c.rows - 1 : c.rows));
  }
  kernel.set(1, begins);
  kernel.set(2, counts);
  return kernel;
}

std::string name_of(DType dtype, const CachedAttentionCase& c) {
  return fmt::format("{} {} heads of {}, {} rows", dtype_name(dtype), c.a.heads, c.a.head_size,
                     c.rows);
}

TEST_F(CachedAttentionCudaTest, EqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const CachedAttentionCase& c : all_cases()) {
      expect_equals_cpu(filled(c, dtype), context(), rounded_once(1e-5), name_of(dtype, c));
    }
  }
}

TEST_F(CachedAttentionCudaTest, IsBitwiseRepeatable) {
  for (const DType dtype : kCudaDtypes) {
    for (const CachedAttentionCase& c : all_cases()) {
      expect_repeatable([&] { return filled(c, dtype); }, context());
    }
  }
}

}  // namespace
}  // namespace braid
