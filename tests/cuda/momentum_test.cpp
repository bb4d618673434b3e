#include "ops/momentum.h"

#include <limits>

#include "ops/optimizer.h"
#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using MomentumCudaTest = CudaKernelTest;

struct MomentumForm {
  std::string op;
  std::vector<Attribute> attributes;
  bool has_moment = true;
  bool has_param = true;
  DType moments = DType::kF32;
};

const std::vector<MomentumForm>& momentum_forms() {
  static const std::vector<MomentumForm> forms = [] {
    const auto lion = to_attributes(
        LionAttributes{.weight_decay = 0.1, .has_param = true, .group = {.rate = 0.5}});
    const auto sgd = [](double momentum, bool nesterov, bool has_param) {
      return to_attributes(SgdAttributes{.momentum = momentum,
                                         .nesterov = nesterov,
                                         .weight_decay = 0.1,
                                         .has_param = has_param,
                                         .group = {.rate = 0.5}});
    };
    return std::vector<MomentumForm>{
        {"lion", lion},
        {"lion", lion, true, true, DType::kBF16},
        {"sgd", sgd(0.9, true, false), true, false},
        {"sgd", sgd(0.9, false, true), true, true, DType::kBF16},
        {"sgd", sgd(0.0, false, true), false, true},
    };
  }();
  return forms;
}

KernelCase momentum_case(const MomentumForm& form, int64_t count, double scale) {
  const Shape n{count};
  const bool narrow = form.moments == DType::kBF16;
  std::vector<OperandSpec> operands = {read(DType::kF32, n), read(DType::kF32, {1}),
                                       read(DType::kF32, {narrow ? 4 : 3}),
                                       read_write(DType::kF32, n)};
  if (form.has_moment) {
    operands.push_back(read_write(form.moments, n));
  }
  if (form.has_param) {
    operands.push_back(write(DType::kBF16, n));
  }
  KernelCase kernel_case({form.op, form.attributes, std::move(operands)});
  kernel_case.set(1, {scale});
  const auto scalars = adamw_scalars(3e-2, 0.9, 0.95, 7);
  kernel_case.set(2, {scalars.begin(), scalars.begin() + (narrow ? 4 : 3)});
  return kernel_case;
}

// The CPU's formula in fp32 too; they differ in which products are fused into sums. A mean of Lion
// near 0 may have the other sign: none of these does.
TEST_F(MomentumCudaTest, EqualsTheCpu) {
  for (const MomentumForm& form : momentum_forms()) {
    for (const int64_t count : {1, 3, 1024, 32769, 100003}) {
      KernelCase expected = momentum_case(form, count, 0.7);
      KernelCase actual = momentum_case(form, count, 0.7);
      expected.run();
      run_on_cuda(actual, context());
      const std::string what = fmt::format("{} [{}]", form.op, count);
      expect_close(actual.values(3), expected.values(3), {.absolute = 3e-7, .relative = 1e-6},
                   what);
      if (form.has_moment) {
        const double unit = form.moments == DType::kBF16 ? 0x1p-7 : 1e-6;
        expect_close(actual.values(4), expected.values(4), {.absolute = 1e-6, .relative = unit},
                     what);
      }
      if (form.has_param) {
        const size_t param = form.has_moment ? 5 : 4;
        std::vector<double> rounded = actual.values(3);
        for (double& value : rounded) {
          value = rounded_to(DType::kBF16, value);
        }
        expect_close(actual.values(param), rounded, {}, what);
      }
    }
  }
}

TEST_F(MomentumCudaTest, ScaleZeroChangesNothingButWritesTheParameter) {
  for (const MomentumForm& form : momentum_forms()) {
    const KernelCase before = momentum_case(form, 1003, 0.0);
    KernelCase after = momentum_case(form, 1003, 0.0);
    after.set_all(0, std::numeric_limits<double>::quiet_NaN());
    run_on_cuda(after, context());
    EXPECT_TRUE(after.bytes(3) == before.bytes(3)) << form.op;
    if (form.has_moment) {
      EXPECT_TRUE(after.bytes(4) == before.bytes(4)) << form.op;
    }
    if (form.has_param) {
      expect_close(after.values(form.has_moment ? 5 : 4), before.values(3),
                   rounded_once(0)(DType::kBF16), form.op);
    }
  }
}

TEST_F(MomentumCudaTest, IsBitwiseRepeatable) {
  for (const MomentumForm& form : momentum_forms()) {
    expect_repeatable([&] { return momentum_case(form, 100003, 0.5); }, context());
  }
}

}  // namespace
}  // namespace braid
