#include "ops/muon.h"

#include "ops/optimizer.h"
#include "support/kernel_harness.h"

namespace braid {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr DType kDtypes[] = {DType::kF32, DType::kBF16};
constexpr int64_t kRows = 37;
constexpr int64_t kColumns = 90;

/// Some five roundings of values up to 1 in f32, and one to the dtype.
Tolerance roundings(DType dtype) {
  return {.absolute = 4 * 0x1p-24, .relative = 8 * 0x1p-24 + (dtype == DType::kBF16 ? 0x1p-8 : 0)};
}

KernelCase momentum_case(DType dtype, bool nesterov, double scale, int64_t n = 5003) {
  KernelCase kernel({"muon_mean",
                     to_attributes(MuonMeanAttributes{.momentum = 0.9, .nesterov = nesterov}),
                     {read(DType::kF32, {n}), read(DType::kF32, {1}), read(DType::kF32, {3}),
                      read_write(DType::kF32, {n}), write(dtype, {n})}});
  kernel.set(1, {scale});
  return kernel;
}

TEST(MuonMean, IsAMeanOfGradients) {
  for (const DType dtype : kDtypes) {
    for (const bool nesterov : {false, true}) {
      KernelCase kernel = momentum_case(dtype, nesterov, 0.5);
      const auto grad = kernel.values(0);
      std::vector<double> mean = kernel.values(3);
      std::vector<double> update(grad.size());
      for (size_t i = 0; i < grad.size(); ++i) {
        mean[i] = 0.9 * mean[i] + 0.1 * 0.5 * grad[i];
        update[i] = nesterov ? 0.1 * 0.5 * grad[i] + 0.9 * mean[i] : mean[i];
      }
      kernel.run(2);
      expect_close(kernel.values(3), mean, roundings(DType::kF32), "exp_avg");
      expect_close(kernel.values(4), update, roundings(dtype), "update");
    }
  }
}

// Gradients may be infinite in a step that clip_scale has given the scale 0.
TEST(MuonMean, KeepsItsMeanInASkippedStep) {
  KernelCase kernel = momentum_case(DType::kBF16, true, 0.0);
  kernel.set_all(0, kInfinity);
  const auto before = kernel.values(3);
  kernel.run();
  EXPECT_EQ(kernel.values(3), before);
  EXPECT_EQ(kernel.values(4), std::vector<double>(before.size(), 0.0));
}

OpSpec place_spec(std::string op, std::vector<Attribute> attributes, DType dtype, int64_t pitch,
                  bool transposed) {
  const OperandSpec flat{.dtype = dtype,
                         .access = op == "take_matrix" ? Access::kRead : Access::kReadWrite,
                         .shape = {(kRows - 1) * pitch + kColumns}};
  const Shape shape = transposed ? Shape{kColumns, kRows} : Shape{kRows, kColumns};
  std::vector<OperandSpec> operands = {flat, write(dtype, shape)};
  if (op != "take_matrix") {
    operands = {read(dtype, shape), flat};
  }
  return {std::move(op), std::move(attributes), std::move(operands)};
}

// Rows of a gate and an up projection alternate: a pitch of two rows.
TEST(Matrix, IsTakenAndPutWhereItWas) {
  for (const DType dtype : kDtypes) {
    for (const int64_t pitch : {kColumns, 2 * kColumns}) {
      for (const bool transposed : {false, true}) {
        const MatrixPlaceAttributes place{.pitch = pitch, .transposed = transposed};
        KernelCase take(place_spec("take_matrix", to_attributes(place), dtype, pitch, transposed));
        take.run(2);
        const auto flat = take.values(0);
        const auto x = take.values(1);
        KernelCase put(place_spec(
            "put_matrix", to_attributes(PutMatrixAttributes{.place = place, .factor = 0.25}), dtype,
            pitch, transposed));
        put.set(0, x);
        std::vector<double> expected = put.values(1);
        put.run(2);
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t column = 0; column < kColumns; ++column) {
            const auto here = static_cast<size_t>(row * pitch + column);
            const auto there =
                static_cast<size_t>(transposed ? column * kRows + row : row * kColumns + column);
            EXPECT_EQ(x[there], flat[here]);
            expected[here] = 0.25 * flat[here];
          }
        }
        EXPECT_EQ(put.values(1), expected) << pitch << " " << transposed;
      }
    }
  }
}

TEST(Normalize, DividesByTheRoot) {
  for (const DType dtype : kDtypes) {
    KernelCase kernel({"normalize", {}, {read(DType::kF64, {1}), read_write(dtype, {500})}});
    kernel.set(0, {6.25});
    std::vector<double> expected = kernel.values(1);
    for (double& value : expected) {
      value /= 2.5 + 1e-7;
    }
    kernel.run(2);
    expect_close(kernel.values(1), expected, roundings(dtype));
  }
}

TEST(Normalize, OfZerosIsZero) {
  KernelCase kernel({"normalize", {}, {read(DType::kF64, {1}), read_write(DType::kF32, {5})}});
  kernel.set(0, {0.0});
  kernel.set_all(1, 0.0);
  kernel.run();
  EXPECT_EQ(kernel.values(1), std::vector<double>(5, 0.0));
}

TEST(WeightedSum, ReplacesTheSecond) {
  for (const DType dtype : kDtypes) {
    KernelCase kernel({"weighted_sum",
                       to_attributes(WeightedSumAttributes{.x_weight = -1.5, .y_weight = 0.75}),
                       {read(dtype, {500}), read_write(dtype, {500})}});
    const auto x = kernel.values(0);
    std::vector<double> expected = kernel.values(1);
    for (size_t i = 0; i < x.size(); ++i) {
      expected[i] = -1.5 * x[i] + 0.75 * expected[i];
    }
    kernel.run(2);
    expect_close(kernel.values(1), expected, roundings(dtype));
  }
}

KernelCase update_case(DType dtype, double scale) {
  constexpr int64_t kCount = 5003;
  KernelCase kernel(
      {"muon_update",
       to_attributes(MuonUpdateAttributes{.weight_decay = 0.5, .has_param = true, .group = {0.25}}),
       {read(dtype, {kCount}), read(DType::kF32, {1}), read(DType::kF32, {3}),
        read_write(DType::kF32, {kCount}), write(DType::kBF16, {kCount})}});
  kernel.set(1, {scale});
  kernel.set(2, {0.5, 0.25, 0.25});
  return kernel;
}

TEST(MuonUpdate, MovesByTheRateOfItsGroup) {
  for (const DType dtype : kDtypes) {
    for (const double scale : {0.5, 0.0}) {
      KernelCase kernel = update_case(dtype, scale);
      const auto update = kernel.values(0);
      std::vector<double> weight = kernel.values(3);
      for (size_t i = 0; scale != 0 && i < weight.size(); ++i) {
        weight[i] -= 0.125 * 0.5 * weight[i] + 0.125 * update[i];
      }
      kernel.run(2);
      expect_close(kernel.values(3), weight, roundings(DType::kF32), "weight");
      std::vector<double> param = kernel.values(3);
      for (double& value : param) {
        value = rounded_to(DType::kBF16, value);
      }
      EXPECT_EQ(kernel.values(4), param);
    }
  }
}

TEST(Muon, DoesNotDependOnTheNumberOfWorkers) {
  expect_same_for_any_workers([] { return momentum_case(DType::kBF16, true, 0.5, 70001); });
  expect_same_for_any_workers([] { return update_case(DType::kBF16, 0.5); });
}

}  // namespace
}  // namespace braid
