#include "support/mamba2_section_cases.h"

#include "support/mamba2_cuda_checks.h"

namespace braid {
namespace {

using Mamba2SectionCudaTest = Mamba2FamilyTest;
using Mamba2LastRowsCudaTest = CudaKernelTest;

INSTANTIATE_TEST_SUITE_P(Families, Mamba2SectionCudaTest, mamba2_families(), mamba2_family_name);

/// Cases of mamba2 whose sequences are long enough to be sections.
std::vector<Mamba2SectionCase> cases() {
  std::vector<Mamba2SectionCase> list;
  for (const Mamba2Case& c : mamba2_cuda_cases()) {
    if (c.a.sequence >= c.taps - 1) {
      list.push_back({c});
    }
  }
  return list;
}

/// Heads forget within a few rows, or remember the whole section.
KernelCase forward_case(const Mamba2SectionCase& c) {
  KernelCase kernel = c.forward(DType::kBF16);
  TestRandom random(3);
  kernel.set(3, random.uniforms(c.of.all_heads(), -3.0, 0.0));
  kernel.set(4, random.uniforms(c.of.all_heads(), -5.0, 0.0));
  return kernel;
}

KernelCase ran(KernelCase kernel) {
  kernel.run(2);
  return kernel;
}

TEST_P(Mamba2SectionCudaTest, ForwardEqualsTheCpu) {
  for (const Mamba2SectionCase& c : cases()) {
    KernelCase kernel = forward_case(c);
    const KernelCase expected = f64_reference(kernel, 2);
    run_on_cuda(kernel, context());
    for (const size_t i : {9, 10, 11}) {
      expect_near(kernel.values(i), expected.values(i), 0.01,
                  fmt::format("{} operand {}", c.name(DType::kBF16), i));
    }
  }
}

/// States, and behind them the decays.
void expect_near_summaries(const Mamba2SectionCase& c, const std::vector<double>& actual,
                           const std::vector<double>& expected, double limit,
                           const std::string& what) {
  const int64_t width = c.summaries()[1];
  const int64_t states = c.states()[1];
  expect_near(columns(actual, width, 0, states), columns(expected, width, 0, states), limit, what);
  expect_close(columns(actual, width, states, width), columns(expected, width, states, width),
               {.absolute = 1e-6, .relative = 1e-4}, what + " decays");
}

TEST_P(Mamba2SectionCudaTest, StatesAndTheirGradientsEqualTheCpu) {
  for (const Mamba2SectionCase& c : cases()) {
    const std::string name = c.name(DType::kBF16);
    const KernelCase forward = ran(forward_case(c));
    KernelCase states = c.section_states(forward);
    const KernelCase expected_states = f64_reference(states, 2);
    run_on_cuda(states, context());
    expect_near_summaries(c, states.values(8), expected_states.values(8), 0.01, name);
    KernelCase grads = c.state_grads(forward);
    const KernelCase expected_grads = f64_reference(grads, 2);
    run_on_cuda(grads, context());
    expect_near_summaries(c, grads.values(11), expected_grads.values(11), 0.015, name);
  }
}

TEST_P(Mamba2SectionCudaTest, BackwardEqualsTheCpu) {
  for (const bool accumulate : {false, true}) {
    for (const Mamba2SectionCase& c : cases()) {
      KernelCase kernel = c.backward(ran(forward_case(c)), accumulate);
      const KernelCase expected = f64_reference(kernel, 2);
      run_on_cuda(kernel, context());
      const std::string name = c.name(DType::kBF16);
      expect_near_by_part(c.of.a, kernel.values(13), expected.values(13), 0.015, name);
      for (size_t i = 14; i < 21; ++i) {  // sums, whose addends cancel in part
        expect_near(kernel.values(i), expected.values(i), 0.025,
                    fmt::format("{} operand {}", name, i));
      }
    }
  }
}

TEST_P(Mamba2SectionCudaTest, IsRepeatable) {
  const Mamba2SectionCase c = cases()[3];
  expect_repeatable([&] { return forward_case(c); }, context());
  const KernelCase forward = ran(forward_case(c));
  expect_repeatable([&] { return c.section_states(forward); }, context());
  expect_repeatable([&] { return c.state_grads(forward); }, context());
  expect_repeatable([&] { return c.backward(forward, true); }, context());
}

// The last rows of each section, which are copied and added to: the CPU's bits.
TEST_F(Mamba2LastRowsCudaTest, EqualTheCpus) {
  const Mamba2InputsAttributes a{.inner = 8, .sequence = 7, .rows = 3};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    KernelCase copy(
        {"mamba2_last_inputs", to_attributes(a), {read(dtype, {21, 37}), write(dtype, {9, 24})}});
    KernelCase add({"mamba2_add_inputs",
                    to_attributes(a),
                    {read(dtype, {9, 24}), read_write(dtype, {21, 37})}});
    for (KernelCase* const kernel : {&copy, &add}) {
      KernelCase expected(kernel->spec());
      expected.run();
      run_on_cuda(*kernel, context());
      EXPECT_TRUE(kernel->bytes(1) == expected.bytes(1)) << kernel->spec().op;
    }
  }
}

}  // namespace
}  // namespace braid
