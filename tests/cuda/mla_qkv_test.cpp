#include "support/mla_qkv_cases.h"

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using MlaQkvCudaTest = CudaKernelTest;

std::vector<MlaCase> all_cases() {
  std::vector<MlaCase> cases = awkward_mla_cases();
  // DeepSeek-V2-Lite's sizes.
  cases.push_back(
      {{.heads = 16, .plain = 128, .rotated = 64, .value = 128, .head_size = 192, .sequence = 67},
       2});
  return cases;
}

std::string name_of(DType dtype, const MlaCase& c) {
  return fmt::format("{} heads {} of {}+{}", dtype_name(dtype), c.a.heads, c.a.plain, c.a.rotated);
}

// An angle is off by 4e-7 at most; the gradient of the shared key is a sum over heads in f32.
TEST_F(MlaQkvCudaTest, EqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const MlaCase& c : all_cases()) {
      expect_equals_cpu(c.forward(dtype), context(), rounded_once(1e-6), name_of(dtype, c));
      expect_equals_cpu(c.backward(dtype), context(), rounded_once(1e-5), name_of(dtype, c));
    }
  }
}

TEST_F(MlaQkvCudaTest, OfDocumentsEqualsTheCpu) {
  MlaCase c{{.heads = 3,
             .plain = 5,
             .rotated = 4,
             .value = 7,
             .head_size = 9,
             .sequence = 6,
             .positions = {.first_begin = 3, .second_begin = 9, .split = 2},
             .documents = {.documents = true}},
            2};
  const std::vector<double> starts = {2, 4, 4, 10, 10, 12, 0, 0, 0, 0, 11, 11};
  for (const DType dtype : kCudaDtypes) {
    for (const bool is_forward : {true, false}) {
      OpSpec spec = (is_forward ? c.forward(dtype) : c.backward(dtype)).spec();
      const size_t at = is_forward ? 3 : 1;
      spec.operands.insert(spec.operands.begin() + static_cast<std::ptrdiff_t>(at),
                           read(DType::kI32, {c.rows()}));
      KernelCase of_documents(spec);
      of_documents.set(at, starts);
      expect_equals_cpu(std::move(of_documents), context(), rounded_once(1e-5), spec.op);
    }
  }
}

TEST_F(MlaQkvCudaTest, IsBitwiseRepeatable) {
  for (const DType dtype : kCudaDtypes) {
    for (const MlaCase& c : all_cases()) {
      expect_repeatable([&] { return c.forward(dtype); }, context());
      expect_repeatable([&] { return c.backward(dtype); }, context());
    }
  }
}

}  // namespace
}  // namespace braid
