// The kernel beside linear_wgrad's product, without the product: compute-sanitizer's racecheck
// cannot instrument cuBLASLt's kernels.
#include "backends/cuda/kernels/bias_grad.h"

#include "backends/cuda/kernels/scratch_sizes.h"
#include "support/cuda_kernel_case.h"

namespace braid {
namespace {

using BiasGradTest = CudaKernelTest;

std::vector<std::byte> to_bytes(DType dtype, const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * dtype_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    store_double(dtype, bytes.data() + i * dtype_bytes(dtype), values[i]);
  }
  return bytes;
}

/// One run; expects that nothing outside of db and scratch is written. `old` is what db holds
/// before.
std::vector<std::byte> run_bias_grad(BiasGradArgs args, const std::vector<std::byte>& dy,
                                     const std::vector<std::byte>& old) {
  GuardedDeviceBuffer dy_buffer(dy.size());
  GuardedDeviceBuffer db_buffer(old.size());
  GuardedDeviceBuffer scratch(bias_grad_scratch_bytes(args.rows, args.columns));
  dy_buffer.upload(dy);
  db_buffer.upload(old);
  scratch.poison();
  args.dy = dy_buffer.data();
  args.db = reinterpret_cast<float*>(db_buffer.data());
  args.scratch = reinterpret_cast<float*>(scratch.data());
  bias_grad(args, nullptr);
  BRAID_CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(dy_buffer.guards_intact() && db_buffer.guards_intact() && scratch.guards_intact());
  EXPECT_TRUE(dy_buffer.download() == dy);
  return db_buffer.download();
}

TEST_F(BiasGradTest, SumsColumnsAndRepeatsBitwise) {
  TestRandom random(1);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 1},
                                        {7, 3},
                                        {33, 256},
                                        {1000, 264},
                                        {31, 2051},
                                        {4099, 96}}) {
      const std::vector<double> exact = random.uniforms(rows * columns, -1, 1);
      const std::vector<std::byte> dy = to_bytes(dtype, exact);
      const std::vector<double> values = to_doubles(dtype, dy);
      const std::vector<double> ones(static_cast<size_t>(columns), 1.0);
      for (const bool accumulate : {false, true}) {
        std::vector<double> expected(static_cast<size_t>(columns), accumulate ? 1.0 : 0.0);
        for (size_t i = 0; i < values.size(); ++i) {
          expected[i % static_cast<size_t>(columns)] += values[i];
        }
        const BiasGradArgs args{
            .dtype = dtype, .rows = rows, .columns = columns, .accumulate = accumulate};
        const std::vector<std::byte> old = to_bytes(DType::kF32, ones);
        const std::vector<std::byte> db = run_bias_grad(args, dy, old);
        expect_close(to_doubles(DType::kF32, db), expected,
                     sum_tolerance(DType::kF32, static_cast<double>(rows + 1)),
                     fmt::format("{} {} x {}", dtype_name(dtype), rows, columns));
        EXPECT_TRUE(run_bias_grad(args, dy, old) == db);
      }
    }
  }
}

}  // namespace
}  // namespace braid
