// The CPU's kernel is the definition: copies, scales and tallies must have its bits.
#include "ops/quantize_grouped.h"

#include "support/cuda_kernel_case.h"
#include "support/grouped_copies_cases.h"

namespace braid {
namespace {

using QuantizeGroupedCudaTest = CudaKernelTest;

/// In addition to the awkward ones: many experts, few of them with rows; and many tiles.
std::vector<Groups> all_groups() {
  std::vector<Groups> list = awkward_copies();
  list.push_back({std::vector<int64_t>(130, 3), 128, 128});
  Groups sparse{std::vector<int64_t>(512, 0), 128, 128, 11};
  sparse.counts[17] = 129;
  sparse.counts[511] = 1;
  list.push_back(sparse);
  list.push_back({{700, 0, 33, 1000, 129}, 512, 128, 50});
  return list;
}

void expect_bits_of_cpu(const Groups& g, const QuantizeGroupedAttributes& attributes, DType format,
                        CudaContext& context) {
  KernelCase expected = quantize_grouped_case(DType::kBF16, g, attributes, format);
  KernelCase found = quantize_grouped_case(DType::kBF16, g, attributes, format);
  expected.run(2);
  run_on_cuda(found, context);
  for (size_t i = 2; i < expected.spec().operands.size(); ++i) {
    EXPECT_TRUE(found.bytes(i) == expected.bytes(i))
        << "E=" << g.num_experts() << " R=" << g.rows() << " C=" << g.in << " operand " << i;
  }
}

// What belongs to no expert holds NaN before, and still does after.
TEST_F(QuantizeGroupedCudaTest, HasTheBitsOfTheCpu) {
  for (const Groups& g : all_groups()) {
    for (const DType format : {DType::kF8E4M3, DType::kF8E5M2}) {
      expect_bits_of_cpu(g, {}, format, context());
      expect_bits_of_cpu(g, {.watch = {true}}, format, context());
    }
    expect_bits_of_cpu(g, {.row = false}, DType::kF8E4M3, context());
    expect_bits_of_cpu(g, {.column = false, .watch = {true}}, DType::kF8E4M3, context());
  }
}

TEST_F(QuantizeGroupedCudaTest, BlocksThatAreNotFiniteAreNaN) {
  const Groups g{.counts = {130, 2, 70}, .in = 256, .out = 128, .unused_rows = 3};
  KernelCase expected = quantize_grouped_case(DType::kBF16, g);
  std::vector<double> x = expected.values(0);
  x[129 * 256 + 3] = std::numeric_limits<double>::infinity();
  x[200 * 256 + 131] = std::numeric_limits<double>::quiet_NaN();
  expected.set(0, x);
  KernelCase found = quantize_grouped_case(DType::kBF16, g);
  found.set(0, x);
  expected.run();
  run_on_cuda(found, context());
  for (size_t i = 2; i < expected.spec().operands.size(); ++i) {
    EXPECT_TRUE(found.bytes(i) == expected.bytes(i)) << "operand " << i;
  }
}

TEST_F(QuantizeGroupedCudaTest, GraphHasTheBitsOfALaunch) {
  const Groups g{.counts = {700, 0, 33, 129}, .in = 384, .out = 128, .unused_rows = 5};
  KernelCase plain = quantize_grouped_case(DType::kBF16, g);
  KernelCase graph = quantize_grouped_case(DType::kBF16, g);
  run_on_cuda(plain, context());
  run_on_cuda(graph, context(), CudaLaunch::kGraph);
  for (size_t i = 2; i < plain.spec().operands.size(); ++i) {
    EXPECT_TRUE(graph.bytes(i) == plain.bytes(i)) << "operand " << i;
  }
}

}  // namespace
}  // namespace braid
