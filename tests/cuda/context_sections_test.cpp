#include "ops/context_sections.h"

#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using ContextSectionsCudaTest = CudaKernelTest;

/// Two sections per rank in zig-zag order, one and two where all ranks exchange heads, and both
/// where some do.
const ContextSections kContexts[] = {
    {.ranks = 3, .sections = 2},
    {.ranks = 4, .inner = 4, .sections = 1},
    {.ranks = 3, .inner = 3, .sections = 2},
    {.ranks = 4, .inner = 2, .sections = 1},
    {.ranks = 6, .inner = 3, .sections = 2},
};

/// visit(the place of each rank, in the direction of the sequence and back).
void for_each_rank(const auto& visit) {
  for (ContextSections context : kContexts) {
    for (context.index = 0; context.index < context.ranks; ++context.index) {
      visit(context, false);
      visit(context, true);
    }
  }
}

TEST_F(ContextSectionsCudaTest, NeighboursAreTheCpus) {
  for_each_rank([&](const ContextSections& sections, bool later) {
    const int64_t own = 2 * sections.sections * 3;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      KernelCase kernel({"neighbour_sections",
                         to_attributes(NeighbourSectionsAttributes{
                             .context = sections, .rows = 3, .later = later}),
                         {read(dtype, {sections.ranks * own, 37}), write(dtype, {own, 37})}});
      KernelCase expected(kernel.spec());
      expected.run();
      run_on_cuda(kernel, context());
      EXPECT_TRUE(kernel.bytes(1) == expected.bytes(1)) << sections.ranks << " " << sections.index;
    }
  });
}

TEST_F(ContextSectionsCudaTest, StatesAreTheCpus) {
  for_each_rank([&](const ContextSections& sections, bool later) {
    const int64_t own = 2 * sections.sections;
    constexpr int64_t kHeads = 5;
    constexpr int64_t kElems = 24;
    KernelCase kernel(
        {"carry_states",
         to_attributes(CarryStatesAttributes{.context = sections, .heads = kHeads, .later = later}),
         {read(DType::kF32, {sections.ranks * own, kHeads * (kElems + 1)}),
          write(DType::kF32, {own, kHeads * kElems})}});
    const KernelCase expected = f64_reference(kernel, 2);
    run_on_cuda(kernel, context());
    expect_close(kernel.values(1), expected.values(1), {.absolute = 1e-5}, "states");
  });
}

}  // namespace
}  // namespace braid
