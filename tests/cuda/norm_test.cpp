#include "ops/norm.h"

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using NormCudaTest = CudaKernelTest;

struct Sizes {
  int64_t rows;
  int64_t width;
};

/// One element, primes, rows of all loads per thread, more rows than blocks of the backward.
constexpr Sizes kSizes[] = {{1, 1},     {3, 2},    {5, 7},      {37, 31},    {9, 1001}, {67, 384},
                            {2500, 64}, {33, 768}, {130, 2048}, {600, 4096}, {5, 5000}, {7, 8192}};
constexpr Sizes kWidestBf16{3, 16384};

std::vector<Sizes> sizes_for(DType dtype) {
  std::vector<Sizes> sizes(std::begin(kSizes), std::end(kSizes));
  if (dtype == DType::kBF16) {
    sizes.push_back(kWidestBf16);
  }
  return sizes;
}

std::string name_of(DType dtype, Sizes s) {
  return fmt::format("{} [{},{}]", dtype_name(dtype), s.rows, s.width);
}

struct ForwardForm {
  bool centred;
  bool adds;
};
constexpr ForwardForm kForms[] = {{false, false}, {false, true}, {true, false}, {true, true}};

KernelCase forward_case(DType dtype, Sizes s, ForwardForm form) {
  const Shape rows{s.rows, s.width};
  const Shape width{s.width};
  std::vector<OperandSpec> operands = {read(dtype, rows)};
  if (form.adds) {
    operands.push_back(read(dtype, rows));
  }
  operands.push_back(read(dtype, width));
  if (form.centred) {
    operands.push_back(read(dtype, width));
  }
  if (form.adds) {
    operands.push_back(write(dtype, rows));
  }
  operands.push_back(write(dtype, rows));
  if (form.centred) {
    operands.push_back(write(DType::kF32, {s.rows}));
  }
  operands.push_back(write(DType::kF32, {s.rows}));
  return KernelCase(
      {fmt::format("{}{}", form.adds ? "add_" : "", form.centred ? "layernorm" : "rmsnorm"),
       to_attributes(NormAttributes{.epsilon = 1e-5}), std::move(operands)});
}

KernelCase backward_case(DType dtype, Sizes s, bool centred, NormBackwardAttributes attributes) {
  const Shape rows{s.rows, s.width};
  const Shape width{s.width};
  std::vector<OperandSpec> operands = {read(dtype, rows), read(dtype, width)};
  if (centred) {
    operands.push_back(read(DType::kF32, {s.rows}));
  }
  operands.push_back(read(DType::kF32, {s.rows}));
  operands.push_back(read(dtype, rows));
  if (attributes.has_d_sum) {
    operands.push_back(read(dtype, rows));
  }
  operands.push_back(write(dtype, rows));
  operands.push_back(gradient(attributes.accumulate, DType::kF32, width));
  if (centred) {
    operands.push_back(gradient(attributes.accumulate, DType::kF32, width));
  }
  return KernelCase({centred ? "layernorm_backward" : "rmsnorm_backward", to_attributes(attributes),
                     std::move(operands)});
}

// 1 / sqrt(epsilon) = 316 is the largest rstd, and times the error of a mean of numbers up to 1
// gives 4e-5.
const auto kForwardTolerance = rounded_once(5e-5, 2e-6);

TEST_F(NormCudaTest, ForwardEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : sizes_for(dtype)) {
      for (const ForwardForm form : kForms) {
        if (!form.adds) {
          expect_equals_cpu(forward_case(dtype, s, form), context(), kForwardTolerance,
                            name_of(dtype, s));
        }
      }
    }
  }
}

TEST_F(NormCudaTest, AddsTheOffsetToWeights) {
  const auto with_offset = [](const KernelCase& kernel) {
    OpSpec spec = kernel.spec();
    spec.attributes.push_back({"weight_offset", 1.0});
    return KernelCase(std::move(spec));
  };
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : {Sizes{5, 7}, {67, 384}, {33, 1152}}) {
      expect_equals_cpu(with_offset(forward_case(dtype, s, kForms[0])), context(),
                        rounded_once(1e-4, 4e-6), name_of(dtype, s));
      const auto tolerance = [&](DType stored) {
        return stored == DType::kF32 ? sum_tolerance(stored, static_cast<double>(s.rows) + 1, 2.0)
                                     : rounded_once(4e-5)(stored);
      };
      expect_equals_cpu(with_offset(backward_case(dtype, s, false, {.has_d_sum = true})), context(),
                        tolerance, name_of(dtype, s));
    }
  }
}

// What recomputation relies on.
TEST_F(NormCudaTest, OfAKeptSumGivesTheBitsOfTheAddForm) {
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : sizes_for(dtype)) {
      for (const bool centred : {false, true}) {
        KernelCase fused = forward_case(dtype, s, {.centred = centred, .adds = true});
        run_on_cuda(fused, context());
        KernelCase replay = replay_of(fused);
        run_on_cuda(replay, context());
        expect_replayed(replay, fused, name_of(dtype, s));
      }
    }
  }
}

// The norm is that of the rounded sum: the reference gets the sum that the device wrote.
TEST_F(NormCudaTest, AddFormsNormaliseTheRoundedSum) {
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : sizes_for(dtype)) {
      for (const bool centred : {false, true}) {
        KernelCase fused = forward_case(dtype, s, {.centred = centred, .adds = true});
        const auto x = fused.values(0);
        const auto residual = fused.values(1);
        run_on_cuda(fused, context());
        const size_t sum_at = centred ? 4 : 3;
        std::vector<double> sums(x.size());
        for (size_t i = 0; i < x.size(); ++i) {
          sums[i] = rounded_to(dtype, x[i] + residual[i]);
        }
        expect_close(fused.values(sum_at), sums, {}, "sum " + name_of(dtype, s));

        KernelCase plain = forward_case(dtype, s, {.centred = centred, .adds = false});
        plain.set(0, sums);
        plain.set(1, fused.values(2));
        if (centred) {
          plain.set(2, fused.values(3));
        }
        const KernelCase expected = f64_reference(plain);
        for (size_t i = centred ? 3 : 2; i < plain.spec().operands.size(); ++i) {
          expect_close(fused.values(i + 2), expected.values(i),
                       kForwardTolerance(plain.spec().operands[i].dtype),
                       fmt::format("{} operand {}", name_of(dtype, s), i));
        }
      }
    }
  }
}

TEST_F(NormCudaTest, BackwardEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const Sizes s : sizes_for(dtype)) {
      for (const bool centred : {false, true}) {
        for (const bool flag : {false, true}) {
          // dx: a mean over the row; dw: a sum over rows of terms below 2.
          const double terms = static_cast<double>(s.rows) + 1;
          const auto tolerance = [&](DType stored) {
            return stored == DType::kF32 ? sum_tolerance(stored, terms, 2.0)
                                         : rounded_once(2e-5)(stored);
          };
          expect_equals_cpu(
              backward_case(dtype, s, centred, {.has_d_sum = flag, .accumulate = !flag}), context(),
              tolerance, name_of(dtype, s));
        }
      }
    }
  }
}

TEST_F(NormCudaTest, IsBitwiseRepeatable) {
  const Sizes sizes{1301, 520};
  for (const DType dtype : kCudaDtypes) {
    for (const ForwardForm form : kForms) {
      expect_repeatable([&] { return forward_case(dtype, sizes, form); }, context());
    }
    for (const bool centred : {false, true}) {
      expect_repeatable(
          [&] {
            return backward_case(dtype, sizes, centred, {.has_d_sum = true, .accumulate = true});
          },
          context());
    }
  }
}

TEST_F(NormCudaTest, RefusesRowsThatItsRegistersCannotHold) {
  EXPECT_THROW(
      make_cuda_kernel(forward_case(DType::kBF16, {1, 32769}, kForms[0]).spec(), context()),
      InternalError);
  EXPECT_THROW(
      make_cuda_kernel(backward_case(DType::kBF16, {1, 16385}, false, {}).spec(), context()),
      InternalError);
}

}  // namespace
}  // namespace braid
