// linear_swiglu_test.cpp holds the ops to the CPU's with the kernel that was measured to be the
// fastest; here are all that could be.
#include "backends/cuda/kernels/linear_swiglu.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "backends/cuda/algorithm_cache.h"
#include "ops/linear_swiglu.h"
#include "support/cuda_kernel_case.h"
#include "support/linear_swiglu_cases.h"

namespace braid {
namespace {

/// One row, less than a tile, odd multiples of 8, one row more than the tiles of a cluster, and
/// more tiles than multiprocessors.
constexpr SwigluSizes kSizes[] = {{1, 8, 8},        {3, 24, 40},     {129, 264, 136},
                                  {257, 72, 1032},  {300, 1000, 88}, {1031, 136, 776},
                                  {2048, 512, 1536}};

constexpr OpSpec (*kSpecs[])(DType, SwigluSizes) = {linear_swiglu_spec,
                                                    linear_dgrad_swiglu_backward_spec};

bool is_forward(const OpSpec& spec) {
  return spec.op == kLinearSwigluOp.name;
}

size_t num_written(const OpSpec& spec) {
  return is_forward(spec) ? 2 : 1;
}

std::string name_of(const OpSpec& spec, const std::string& kernel) {
  const Shape& x = spec.operands[0].shape;
  const Shape& w = spec.operands[1].shape;
  return fmt::format("{} {} [{},{}] [{},{}]", spec.op, kernel, x[0], x[1], w[0], w[1]);
}

/// Skipped where the build has no such kernels.
class FusedProductsTest : public CudaKernelTest {
 protected:
  void SetUp() override {
    CudaKernelTest::SetUp();
    if (!IsSkipped() && fused_kernel_names(linear_swiglu_spec(DType::kBF16, kSizes[0])).empty()) {
      GTEST_SKIP() << "scripts/build_sm90_kernels.sh was not run before the build";
    }
  }

  /// With each kernel of the spec.
  static void for_each_kernel(
      const OpSpec& spec,
      const std::function<void(const CudaKernel& kernel, const std::string& name)>& check) {
    for (const std::string& kernel : fused_kernel_names(spec)) {
      check(make_fused_kernel(spec, kernel, context()), name_of(spec, kernel));
    }
  }
};

/// The two kernels that the op stands for, on the device; the written operands.
KernelCase two_kernels(const KernelCase& inputs, CudaContext& context) {
  const ProductAndActivation parts = unfused(inputs.spec());
  KernelCase product(parts.product);
  KernelCase activation(parts.activation);
  product.set(0, inputs.values(0));
  product.set(1, inputs.values(1));
  run_on_cuda(product, context);
  KernelCase both(inputs.spec());
  if (is_forward(inputs.spec())) {
    activation.set(0, product.values(2));
    run_on_cuda(activation, context);
    both.set(2, product.values(2));
    both.set(3, activation.values(1));
  } else {
    activation.set(0, inputs.values(2));
    activation.set(1, product.values(2));
    run_on_cuda(activation, context);
    both.set(3, activation.values(2));
  }
  return both;
}

/// Elements of the written operands whose bits differ.
size_t num_different(const KernelCase& a, const KernelCase& b) {
  size_t count = 0;
  for (size_t i = a.spec().operands.size() - num_written(a.spec()); i < a.spec().operands.size();
       ++i) {
    const std::vector<std::byte> left = a.bytes(i);
    const std::vector<std::byte> right = b.bytes(i);
    for (size_t at = 0; at < left.size(); at += 2) {
      count += left[at] != right[at] || left[at + 1] != right[at + 1] ? 1 : 0;
    }
  }
  return count;
}

// Gates of the backward reach into both tails of the exponential.
KernelCase random_case(const OpSpec& spec) {
  KernelCase kernel_case(spec, /*seed=*/5);
  if (!is_forward(spec)) {
    TestRandom random(7);
    kernel_case.set(2, random.uniforms(kernel_case.num_elems(2), -30.0, 30.0));
  }
  return kernel_case;
}

/// Multiples of 1/8 whose products any order of additions sums up exactly in fp32, to more bits
/// than bf16 has.
KernelCase exact_case(const OpSpec& spec) {
  KernelCase kernel_case = random_case(spec);
  TestRandom random(11);
  for (const size_t i : {0, 1}) {
    std::vector<double> values(static_cast<size_t>(kernel_case.num_elems(i)));
    std::generate(values.begin(), values.end(),
                  [&] { return static_cast<double>(random.below(17) - 8) / 8; });
    kernel_case.set(i, values);
  }
  return kernel_case;
}

TEST_F(FusedProductsTest, ForwardEqualsTheCpu) {
  for (const SwigluSizes s : kSizes) {
    const OpSpec spec = linear_swiglu_spec(DType::kBF16, s);
    const KernelCase expected = f64_reference(random_case(spec));
    for_each_kernel(spec, [&](const CudaKernel& kernel, const std::string& name) {
      KernelCase actual = random_case(spec);
      run_on_cuda(actual, kernel);
      expect_close(actual.values(2), expected.values(2),
                   sum_tolerance(DType::kBF16, static_cast<double>(s.depth)), name + " gate_up");
      expect_close(actual.values(3), swiglu_of_written(actual),
                   {.absolute = 1e-4, .relative = 1.01 * rounding_error(DType::kBF16) + 1e-5},
                   name + " y");
    });
  }
}

// d_h and the result are each rounded once; factors behind d_h are 33 at most.
TEST_F(FusedProductsTest, BackwardEqualsTheCpu) {
  for (const SwigluSizes s : kSizes) {
    const OpSpec spec = linear_dgrad_swiglu_backward_spec(DType::kBF16, s);
    const KernelCase expected = f64_reference(random_case(spec));
    Tolerance tolerance = sum_tolerance(DType::kBF16, static_cast<double>(s.depth));
    tolerance.absolute *= 33;
    tolerance.relative = 2.02 * rounding_error(DType::kBF16) + 1e-5;
    for_each_kernel(spec, [&](const CudaKernel& kernel, const std::string& name) {
      KernelCase actual = random_case(spec);
      run_on_cuda(actual, kernel);
      expect_close(actual.values(3), expected.values(3), tolerance, name);
    });
  }
}

// Where all sums are exact, the product has no choice, and the epilogue is the activation's kernel
// to the bit, the rounding between them included.
TEST_F(FusedProductsTest, EpiloguesHaveTheBitsOfTheKernelsOfSwiglu) {
  for (const auto make_spec : kSpecs) {
    for (const SwigluSizes s : kSizes) {
      const OpSpec spec = make_spec(DType::kBF16, s);
      const KernelCase expected = two_kernels(exact_case(spec), context());
      for_each_kernel(spec, [&](const CudaKernel& kernel, const std::string& name) {
        KernelCase actual = exact_case(spec);
        run_on_cuda(actual, kernel);
        EXPECT_EQ(num_different(actual, expected), 0u) << name;
      });
    }
  }
}

// Products add up the same terms in fp32; where another order of them changes the bits at all, the
// rounding to bf16 hides that nearly everywhere.
TEST_F(FusedProductsTest, NearlyAllBitsAreThoseOfTheTwoKernels) {
  for (const auto make_spec : kSpecs) {
    const OpSpec spec = make_spec(DType::kBF16, {2048, 1024, 1536});
    const KernelCase expected = two_kernels(KernelCase(spec), context());
    for_each_kernel(spec, [&](const CudaKernel& kernel, const std::string& name) {
      KernelCase actual(spec);
      run_on_cuda(actual, kernel);
      const size_t count = num_different(actual, expected);
      RecordProperty(name, fmt::format("{} elements differ", count));
      EXPECT_LT(count, static_cast<size_t>(expected.num_elems(3)) / 100) << name;
    });
  }
}

/// The case after the named kernel has run on each block of rows between `borders` (the first is 0,
/// the last is the number of rows), every second block first. If a run wrote outside of its rows,
/// it would overwrite rows of a block that ran earlier, or leave wrong rows in a block that runs
/// later.
KernelCase run_blocks_of_rows(KernelCase kernel_case, const std::string& kernel,
                              std::span<const int64_t> borders, CudaContext& context) {
  const OpSpec& whole = kernel_case.spec();
  std::vector<GuardedDeviceBuffer> buffers;
  for (size_t i = 0; i < whole.operands.size(); ++i) {
    buffers.emplace_back(kernel_case.bytes(i).size());
    buffers.back().upload(kernel_case.bytes(i));
  }
  for (const size_t parity : {0, 1}) {
    for (size_t block = parity; block + 1 < borders.size(); block += 2) {
      OpSpec spec = whole;
      std::vector<std::byte*> operands;
      for (size_t i = 0; i < spec.operands.size(); ++i) {
        const bool has_rows = i != 1;  // all but the weight
        const int64_t skipped = has_rows ? borders[block] * spec.operands[i].shape[1] : 0;
        operands.push_back(buffers[i].data() + skipped * 2);
        if (has_rows) {
          spec.operands[i].shape[0] = borders[block + 1] - borders[block];
        }
      }
      check_spec(spec);
      const CudaKernel piece = make_fused_kernel(spec, kernel, context);
      GuardedDeviceBuffer scratch(piece.scratch_bytes);
      piece.launch({.operands = operands, .scratch = scratch.data(), .stream = cudaStreamLegacy});
      BRAID_CUDA_CHECK(cudaDeviceSynchronize());
    }
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_TRUE(buffers[i].guards_intact()) << whole.op << ": wrote outside of operand " << i;
    kernel_case.set(i, to_doubles(DType::kBF16, buffers[i].download()));
  }
  return kernel_case;
}

// Blocks of rows of larger matrices, as rings have them. A row is summed up in one order wherever
// it is in a tile.
TEST_F(FusedProductsTest, BlocksOfRowsHaveTheBitsOfTheWhole) {
  for (const auto make_spec : kSpecs) {
    for (const SwigluSizes s : {SwigluSizes{300, 1000, 88}, SwigluSizes{1031, 136, 776}}) {
      const OpSpec spec = make_spec(DType::kBF16, s);
      const std::array<int64_t, 6> borders{0, 1, 8, 129, 257, s.rows};
      for (const std::string& kernel : fused_kernel_names(spec)) {
        KernelCase expected = random_case(spec);
        run_on_cuda(expected, make_fused_kernel(spec, kernel, context()));
        const KernelCase actual = run_blocks_of_rows(random_case(spec), kernel, borders, context());
        EXPECT_EQ(num_different(actual, expected), 0u) << name_of(spec, kernel);
      }
    }
  }
}

TEST_F(FusedProductsTest, GraphAndRerunsAreBitwiseEqual) {
  for (const auto make_spec : kSpecs) {
    const OpSpec spec = make_spec(DType::kBF16, {1031, 520, 1544});
    for_each_kernel(spec, [&](const CudaKernel& kernel, const std::string& name) {
      KernelCase first = random_case(spec);
      run_on_cuda(first, kernel);
      for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
        KernelCase again = random_case(spec);
        run_on_cuda(again, kernel, how);
        EXPECT_EQ(num_different(again, first), 0u) << name;
      }
    });
  }
}

// In a process with several devices each has the code; a kernel belongs to the one it was made on.
TEST_F(FusedProductsTest, RunsOnAnotherDevice) {
  int devices = 0;
  BRAID_CUDA_CHECK(cudaGetDeviceCount(&devices));
  if (devices < 2) {
    GTEST_SKIP() << "one GPU";
  }
  for (const auto make_spec : kSpecs) {
    const OpSpec spec = make_spec(DType::kBF16, {257, 72, 1032});
    const std::string name = fused_kernel_names(spec).front();
    KernelCase here = random_case(spec);
    run_on_cuda(here, make_fused_kernel(spec, name, context()));
    KernelCase there = random_case(spec);
    BRAID_CUDA_CHECK(cudaSetDevice(1));
    {
      CudaContext other(1, "");
      run_on_cuda(there, make_fused_kernel(spec, name, other));
    }
    BRAID_CUDA_CHECK(cudaSetDevice(0));
    EXPECT_EQ(num_different(there, here), 0u) << spec.op;
  }
}

TEST_F(FusedProductsTest, TheChoiceIsRemembered) {
  CudaContext remembering(0, "");
  for (const auto make_spec : kSpecs) {
    const OpSpec spec = make_spec(DType::kBF16, {512, 256, 1024});
    make_cuda_kernel(spec, remembering);
    const size_t entries = remembering.algorithms().size();
    make_cuda_kernel(spec, remembering);
    EXPECT_EQ(remembering.algorithms().size(), entries);
  }
  // Each op's own, and the product's of the forward's two kernels, which are among its choices.
  EXPECT_EQ(remembering.algorithms().size(), 3u);
}

/// What copies of tiles cannot do has the two kernels. No GPU is asked.
TEST(FusedProductNames, AreOfBf16InWholeVectorsOnly) {
  for (const auto make_spec : kSpecs) {
    EXPECT_TRUE(fused_kernel_names(make_spec(DType::kF32, {64, 64, 64})).empty());
    for (const SwigluSizes s :
         {SwigluSizes{64, 60, 64}, SwigluSizes{64, 64, 60}, SwigluSizes{64, 7, 3}}) {
      EXPECT_TRUE(fused_kernel_names(make_spec(DType::kBF16, s)).empty());
    }
  }
}

}  // namespace
}  // namespace braid
