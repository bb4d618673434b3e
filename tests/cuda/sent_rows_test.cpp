// FP8 rows of experts that travel: the CPU's kernels are the definition. Copies, scales and tallies
// must have their bits.
#include "ops/quantize_gathered.h"
#include "ops/transpose_grouped.h"
#include "support/cuda_kernel_case.h"
#include "support/sent_rows_cases.h"

namespace braid {
namespace {

using QuantizeGatheredCudaTest = CudaKernelTest;
using TransposeGroupedCudaTest = CudaKernelTest;

void expect_same_results(const KernelCase& found, const KernelCase& expected, size_t first) {
  for (size_t i = first; i < expected.spec().operands.size(); ++i) {
    EXPECT_TRUE(found.bytes(i) == expected.bytes(i)) << "operand " << i;
  }
}

/// In addition to the awkward ones: rows that several blocks of threads share.
std::vector<RowSizes> all_sizes() {
  std::vector<RowSizes> list(std::begin(kSentRows), std::end(kSentRows));
  list.push_back({33, 8, 128, 2048});
  list.push_back({5, 2, 8, 14336});
  return list;
}

TEST_F(QuantizeGatheredCudaTest, HasTheBitsOfTheCpu) {
  for (const RowSizes& s : all_sizes()) {
    std::vector<int64_t> ends = ends_of_rows(s);
    ends.push_back(-1);  // no pair is dropped
    for (const int64_t end : ends) {
      for (const DType format : {DType::kF8E4M3, DType::kF8E5M2}) {
        for (const bool watch : {false, true}) {
          SCOPED_TRACE(testing::Message() << "C=" << s.width << " end=" << end << " " << watch);
          KernelCase expected = quantize_gathered_case(DType::kBF16, s, format, end, watch);
          KernelCase found = quantize_gathered_case(DType::kBF16, s, format, end, watch);
          expected.run(2);
          run_on_cuda(found, context());
          expect_same_results(found, expected, end < 0 ? 3 : 4);
        }
      }
    }
  }
}

TEST_F(QuantizeGatheredCudaTest, BlocksThatAreNotFiniteAreNaN) {
  const RowSizes s{.tokens = 5, .per_token = 3, .experts = 4, .width = 384};
  KernelCase expected = quantize_gathered_case(DType::kBF16, s, DType::kF8E4M3);
  std::vector<double> x = expected.values(0);
  x[384 + 130] = std::numeric_limits<double>::infinity();
  x[3 * 384 + 300] = std::numeric_limits<double>::quiet_NaN();
  expected.set(0, x);
  KernelCase found = quantize_gathered_case(DType::kBF16, s, DType::kF8E4M3);
  found.set(0, x);
  expected.run();
  run_on_cuda(found, context());
  expect_same_results(found, expected, 3);
}

/// In addition to the awkward ones: many experts, few of them with rows; and many tiles.
std::vector<Groups> all_groups() {
  std::vector<Groups> list = awkward_copies();
  Groups sparse{std::vector<int64_t>(512, 0), 128, 128, 11};
  sparse.counts[17] = 129;
  sparse.counts[511] = 1;
  list.push_back(sparse);
  list.push_back({{700, 0, 33, 1000, 129}, 512, 128, 50});
  return list;
}

// What belongs to no expert holds NaN before, and still does after.
TEST_F(TransposeGroupedCudaTest, HasTheBitsOfTheCpu) {
  for (const Groups& g : all_groups()) {
    for (const DType format : {DType::kF8E4M3, DType::kF8E5M2}) {
      KernelCase copies = quantize_grouped_case(DType::kBF16, g, {}, format);
      copies.run(2);
      for (const TransposeGroupedAttributes& attributes :
           {TransposeGroupedAttributes{}, {.watch = {true}}, {.column = false}}) {
        SCOPED_TRACE(testing::Message() << "E=" << g.num_experts() << " R=" << g.rows());
        KernelCase expected = transpose_grouped_case(copies, g, attributes);
        KernelCase found = transpose_grouped_case(copies, g, attributes);
        expected.run(2);
        run_on_cuda(found, context());
        expect_same_results(found, expected, 3);
      }
    }
  }
}

TEST_F(TransposeGroupedCudaTest, BlocksThatAreNotFiniteStayNaN) {
  const Groups g{.counts = {130, 2, 70}, .in = 256, .out = 128, .unused_rows = 3};
  KernelCase copies = quantize_grouped_case(DType::kBF16, g);
  std::vector<double> x = copies.values(0);
  x[129 * 256 + 3] = std::numeric_limits<double>::infinity();
  copies.set(0, x);
  copies.run();
  KernelCase expected = transpose_grouped_case(copies, g);
  KernelCase found = transpose_grouped_case(copies, g);
  expected.run();
  run_on_cuda(found, context());
  expect_same_results(found, expected, 3);
}

TEST_F(TransposeGroupedCudaTest, GraphHasTheBitsOfALaunch) {
  const Groups g{.counts = {700, 0, 33, 129}, .in = 384, .out = 128, .unused_rows = 5};
  KernelCase copies = quantize_grouped_case(DType::kBF16, g);
  copies.run();
  KernelCase plain = transpose_grouped_case(copies, g);
  KernelCase graph = transpose_grouped_case(copies, g);
  run_on_cuda(plain, context());
  run_on_cuda(graph, context(), CudaLaunch::kGraph);
  expect_same_results(graph, plain, 3);
}

}  // namespace
}  // namespace braid
