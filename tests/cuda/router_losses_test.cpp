#include "ops/router.h"
#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using RouterLossesCudaTest = CudaKernelTest;

struct Sizes {
  int64_t tokens;
  int64_t experts;
};

constexpr size_t kCounts = 1;  // the operand that is f32 for all types of data

/// One of each, every number of logits per lane, more tokens than a block takes.
constexpr Sizes kSizes[] = {{1, 1}, {3, 33}, {65, 8}, {1000, 64}, {130, 128}, {70, 200}, {9, 512}};

constexpr RouterLossAttributes kLosses[] = {
    {.balance = 0.5},
    {.z = 0.25},
    {.balance = 0.5, .z = 0.25},
    {.balance = 0.5, .z = 0.25, .sigmoid = true},
    {.balance = 0.5, .z = 0.25, .adds = false},
    {.balance = 0.5, .rows = {.sequence = 100}},
    // Several sequences in a block of 64 tokens.
    {.balance = 0.5, .sigmoid = true, .rows = {.sequence = 7, .first = 3}}};

KernelCase losses_case(const RouterLossAttributes& attributes, Sizes s, bool backward) {
  const int64_t sequences = attributes.rows.of(s.tokens - 1) + 1;
  const Shape counts_shape =
      attributes.rows == SequenceRows() ? Shape{s.experts} : Shape{sequences, s.experts};
  KernelCase kernel({backward ? "router_losses_backward" : "router_losses",
                     to_attributes(attributes),
                     {read(DType::kF32, {s.tokens, s.experts}), read(DType::kF32, counts_shape),
                      read(DType::kF32, {1}),
                      write(DType::kF32, backward ? Shape{s.tokens, s.experts} : Shape{2})}});
  std::vector<double> counts;
  for (int64_t i = 0; i < counts_shape.num_elems(); ++i) {
    counts.push_back(static_cast<double>((i * 7) % 5 + (i % s.experts == 0 ? 1 : 0)));
  }
  kernel.set(1, counts);
  return kernel;
}

std::string name_of(const RouterLossAttributes& a, Sizes s) {
  return fmt::format("balance {} z {} sigmoid {} adds {} sequence {} first {} T {} E {}", a.balance,
                     a.z, a.sigmoid, a.adds, a.rows.sequence, a.rows.first, s.tokens, s.experts);
}

TEST_F(RouterLossesCudaTest, EqualTheCpu) {
  for (const RouterLossAttributes& attributes : kLosses) {
    for (const Sizes s : kSizes) {
      expect_equals_cpu(losses_case(attributes, s, false), context(), rounded_once(1e-9, 1e-5),
                        name_of(attributes, s), kCounts);
    }
  }
}

// Differences of shares and of their mean, times the number of experts; and 2 lse, up to 16.
TEST_F(RouterLossesCudaTest, BackwardEqualsTheCpu) {
  for (const RouterLossAttributes& attributes : kLosses) {
    for (const Sizes s : kSizes) {
      expect_equals_cpu(losses_case(attributes, s, true), context(), rounded_once(2e-6, 1e-5),
                        name_of(attributes, s), kCounts);
    }
  }
}

TEST_F(RouterLossesCudaTest, WithoutRowsAreNotNan) {
  KernelCase kernel = losses_case(kLosses[0], {3, 4}, false);
  kernel.set_all(1, 0.0);
  run_on_cuda(kernel, context());
  EXPECT_EQ(kernel.values(3), (std::vector<double>{0, 0}));
}

TEST_F(RouterLossesCudaTest, AreBitwiseRepeatable) {
  for (const bool backward : {false, true}) {
    expect_repeatable([&] { return losses_case(kLosses[2], {1000, 64}, backward); }, context());
  }
}

}  // namespace
}  // namespace braid
