#include "support/row_blocks_cases.h"

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using RowBlocksCudaTest = CudaKernelTest;

/// More rows than warps, vectors of every width, and rows that are no whole vectors.
std::vector<BlocksCase> device_cases(DType dtype) {
  std::vector<BlocksCase> cases = blocks_cases(dtype);
  for (const int64_t width : {1, 5, 64, 1024}) {
    const int64_t rows = width > 64 ? 100 : 1500;  // the CPU's side takes long
    cases.push_back({random_loads(8, 4, 1, rows, 5), rows / 5, dtype, width});
    cases.push_back({random_loads(8, 4, 4, rows / 2, 6), rows / 3, dtype, width, 3});
  }
  cases.push_back({random_loads(64, 4, 1, 512, 7), 20, dtype, 16});
  return cases;
}

TEST_F(RowBlocksCudaTest, HaveTheBitsOfTheCpu) {
  const auto on_cpu = [](KernelCase& kernel) { kernel.run(); };
  for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
    const auto on_gpu = [&](KernelCase& kernel) { run_on_cuda(kernel, context(), how); };
    for (const DType dtype : kCudaDtypes) {
      for (const BlocksCase& c : device_cases(dtype)) {
        for (const bool dispatches : {true, false}) {
          const bool has_weights = how == CudaLaunch::kEager;
          const Exchanged expected = exchange_by_blocks(c, dispatches, has_weights, on_cpu);
          const Exchanged actual = exchange_by_blocks(c, dispatches, has_weights, on_gpu);
          for (size_t m = 0; m < expected.packed.size(); ++m) {
            for (size_t i = 0; i < expected.packed[m].spec().operands.size(); ++i) {
              EXPECT_TRUE(actual.packed[m].values(i) == expected.packed[m].values(i) ||
                          is_floating_point(expected.packed[m].spec().operands[i].dtype))
                  << name_of(c) << ", blocks of member " << m;
            }
            for (size_t i = 0; i < expected.unpacked[m].spec().operands.size(); ++i) {
              expect_close(actual.unpacked[m].values(i), expected.unpacked[m].values(i), {},
                           fmt::format("{}, member {}, operand {}", name_of(c), m, i));
            }
          }
        }
      }
    }
  }
}

// After a rank has failed, what others gathered may be anything.
TEST_F(RowBlocksCudaTest, StayInTheirMemoryWhateverTheOffsetsAre) {
  TestRandom random(3);
  const BlocksCase c{random_loads(4, 3, 1, 300, 8), 90, DType::kBF16, 24};
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<double> offsets;
    for (size_t i = 0; i < offsets_as_values(c).size(); ++i) {
      const int64_t most = trial % 2 == 0 ? 400 : int64_t{1} << 31;
      offsets.push_back(static_cast<double>(random.below(2 * most) - most));
    }
    const int64_t member = random.below(c.experts.members());
    for (const bool held : {false, true}) {
      KernelCase pack = pack_case(c, member, held, true);
      pack.set(2, offsets);
      run_on_cuda(pack, context());
      KernelCase unpack = unpack_case(c, member, held, true, held);
      unpack.set(1, offsets);
      run_on_cuda(unpack, context());
      if (held) {
        const std::vector<double> written = unpack.values(4);
        EXPECT_TRUE(std::ranges::is_sorted(written));
        EXPECT_GE(written.front(), 0);
        EXPECT_LE(written.back(), static_cast<double>(c.room()));
      }
    }
  }
}

}  // namespace
}  // namespace braid
