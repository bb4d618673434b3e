#include "ops/muon.h"

#include <functional>
#include <limits>
#include <string>

#include "ops/optimizer.h"
#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using MuonCudaTest = CudaKernelTest;

constexpr DType kF32 = DType::kF32;

KernelCase momentum_case(DType dtype, DType moments, int64_t count, double scale) {
  const bool narrow = moments == DType::kBF16;
  KernelCase kernel_case({"muon_mean",
                          to_attributes(MuonMeanAttributes{}),
                          {read(kF32, {count}), read(kF32, {1}), read(kF32, {narrow ? 4 : 3}),
                           read_write(moments, {count}), write(dtype, {count})}});
  kernel_case.set(1, {scale});
  return kernel_case;
}

KernelCase place_case(bool takes, DType dtype, int64_t rows, int64_t columns, int64_t turns,
                      bool transposed) {
  const MatrixPlaceAttributes place{.pitch = turns * columns, .transposed = transposed};
  const Shape flat{(rows - 1) * place.pitch + columns};
  const Shape x = transposed ? Shape{columns, rows} : Shape{rows, columns};
  if (takes) {
    return KernelCase({"take_matrix", to_attributes(place), {read(dtype, flat), write(dtype, x)}});
  }
  return KernelCase({"put_matrix",
                     to_attributes(PutMatrixAttributes{.place = place, .factor = 1.7}),
                     {read(dtype, x), read_write(dtype, flat)}});
}

KernelCase update_case(DType dtype, double scale, int64_t count = 10007) {
  KernelCase kernel_case(
      {"muon_update",
       to_attributes(MuonUpdateAttributes{.weight_decay = 0.1, .has_param = true, .group = {0.5}}),
       {read(dtype, {count}), read(kF32, {1}), read(kF32, {3}), read_write(kF32, {count}),
        write(DType::kBF16, {count})}});
  kernel_case.set(1, {scale});
  kernel_case.set(2, {3e-2, 1, 1});
  return kernel_case;
}

// The CPU's formulas in fp32 too; they differ in which products are fused into sums, and a bf16
// result by one unit where that decides.
Tolerance near(DType dtype) {
  return {.absolute = 3e-7, .relative = dtype == DType::kBF16 ? 0x1p-7 : 1e-6};
}

/// The same dtypes on the CPU: these ops have no form in f64.
void expect_near_the_cpu(const std::function<KernelCase()>& make, CudaContext& context,
                         const std::function<Tolerance(DType)>& tolerance,
                         const std::string& name) {
  KernelCase expected = make();
  expected.run(2);
  KernelCase actual = make();
  run_on_cuda(actual, context);
  for (size_t i = 0; i < actual.spec().operands.size(); ++i) {
    expect_close(actual.values(i), expected.values(i), tolerance(actual.spec().operands[i].dtype),
                 fmt::format("{} operand {}", name, i));
  }
}

TEST_F(MuonCudaTest, MomentumEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const DType moments : {kF32, DType::kBF16}) {
      for (const int64_t count : {1, 257, 100003}) {
        expect_near_the_cpu(
            [&] { return momentum_case(dtype, moments, count, 0.7); }, context(), near,
            fmt::format("{} {} [{}]", dtype_name(dtype), dtype_name(moments), count));
      }
    }
  }
}

TEST_F(MuonCudaTest, MatricesAreTakenAndPutAsByTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    for (const bool takes : {true, false}) {
      for (const bool transposed : {false, true}) {
        for (const auto& [rows, columns, turns] :
             {std::tuple{1, 1, 1}, {33, 70, 1}, {64, 32, 2}, {1000, 259, 2}}) {
          KernelCase expected = place_case(takes, dtype, rows, columns, turns, transposed);
          KernelCase actual = place_case(takes, dtype, rows, columns, turns, transposed);
          expected.run();
          run_on_cuda(actual, context());
          EXPECT_TRUE(actual.bytes(1) == expected.bytes(1))
              << takes << transposed << " " << rows << " " << columns;
        }
      }
    }
  }
}

TEST_F(MuonCudaTest, TheRestEqualsTheCpu) {
  for (const DType dtype : kCudaDtypes) {
    const auto normalize = [&] {
      KernelCase made({"normalize", {}, {read(DType::kF64, {1}), read_write(dtype, {10007})}});
      made.set(0, {7.3});
      return made;
    };
    expect_near_the_cpu(normalize, context(), near, "normalize");
    const auto weighted_sum = [&] {
      return KernelCase(
          {"weighted_sum",
           to_attributes(WeightedSumAttributes{.x_weight = -4.775, .y_weight = 2.0315}),
           {read(dtype, {10007}), read_write(dtype, {10007})}});
    };
    expect_near_the_cpu(
        weighted_sum, context(),
        [&](DType it) { return Tolerance{.absolute = 2e-6, .relative = near(it).relative}; },
        "weighted_sum");
    expect_near_the_cpu([&] { return update_case(dtype, 0.7); }, context(), near, "muon_update");
  }
}

TEST_F(MuonCudaTest, ASkippedStepChangesNothing) {
  KernelCase mean = momentum_case(DType::kBF16, kF32, 1003, 0.0);
  mean.set_all(0, std::numeric_limits<double>::quiet_NaN());
  const auto before = mean.values(3);
  run_on_cuda(mean, context());
  EXPECT_EQ(mean.values(3), before);
  EXPECT_EQ(mean.values(4), std::vector<double>(1003, 0.0));
  KernelCase update = update_case(kF32, 0.0);
  const auto weights = update.values(3);
  run_on_cuda(update, context());
  EXPECT_EQ(update.values(3), weights);
}

}  // namespace
}  // namespace braid
