#include "support/mamba2_cases.h"

#include "backends/cuda/kernels/mamba2_scratch.h"
#include "base/expect_error.h"
#include "support/mamba2_cuda_checks.h"

namespace braid {
namespace {

using Mamba2CudaTest = Mamba2FamilyTest;

INSTANTIATE_TEST_SUITE_P(Families, Mamba2CudaTest, mamba2_families(), mamba2_family_name);

/// Heads forget within a few rows, or remember several chunks.
KernelCase forward_case(const Mamba2Case& c, double least_a_log = -5.0) {
  KernelCase kernel = c.forward(DType::kBF16);
  TestRandom random(3);
  kernel.set(3, random.uniforms(c.all_heads(), -3.0, 0.0));
  kernel.set(4, random.uniforms(c.all_heads(), least_a_log, least_a_log + 5.0));
  return kernel;
}

KernelCase backward_case(const Mamba2Case& c, bool accumulate) {
  KernelCase forward = forward_case(c);
  forward.run(2);
  return c.backward(forward, accumulate);
}

TEST_P(Mamba2CudaTest, ForwardEqualsTheCpu) {
  for (const Mamba2Case& c : mamba2_cuda_cases()) {
    KernelCase kernel = forward_case(c);
    const KernelCase expected = f64_reference(kernel, 2);
    run_on_cuda(kernel, context());
    for (const size_t i : {7, 8, 9}) {
      expect_near(kernel.values(i), expected.values(i), 0.01,
                  fmt::format("{} operand {}", c.name(DType::kBF16), i));
    }
  }
}

TEST_P(Mamba2CudaTest, BackwardEqualsTheCpu) {
  for (const bool accumulate : {false, true}) {
    for (const Mamba2Case& c : mamba2_cuda_cases()) {
      KernelCase kernel = backward_case(c, accumulate);
      const KernelCase expected = f64_reference(kernel, 2);
      run_on_cuda(kernel, context());
      const std::string name = c.name(DType::kBF16);
      expect_near_by_part(c.a, kernel.values(10), expected.values(10), 0.015, name);
      for (size_t i = 11; i < 17; ++i) {  // sums over rows, whose addends cancel in part
        expect_near(kernel.values(i), expected.values(i), 0.025,
                    fmt::format("{} operand {}", name, i));
      }
    }
  }
}

// Decays of exp(-400) per row underflow, and those from a row to an earlier one would overflow.
TEST_P(Mamba2CudaTest, ForgetsWithoutNan) {
  const Mamba2Case c{
      {.sequence = 130, .heads = 4, .head_size = 16, .groups = 1, .state = 16, .chunk = 64}, 1, 4};
  KernelCase forward = forward_case(c, 6.0);
  const KernelCase expected = f64_reference(forward, 2);
  run_on_cuda(forward, context());
  expect_near(forward.values(7), expected.values(7), 0.01, "y");
  KernelCase backward = c.backward(forward);
  const KernelCase expected_grads = f64_reference(backward, 2);
  run_on_cuda(backward, context());
  expect_near_by_part(c.a, backward.values(10), expected_grads.values(10), 0.015, "gradient of");
}

TEST_P(Mamba2CudaTest, CarriesANan) {
  const Mamba2Case c = mamba2_cuda_cases()[3];
  for (const size_t column : {c.a.inner(), c.a.dt_begin()}) {
    KernelCase kernel = forward_case(c);
    std::vector<double> rows = kernel.values(0);
    rows[column] = std::numeric_limits<double>::quiet_NaN();
    kernel.set(0, rows);
    run_on_cuda(kernel, context());
    EXPECT_TRUE(std::isnan(kernel.values(9)[0])) << column;
  }
}

TEST_P(Mamba2CudaTest, IsRepeatable) {
  for (const size_t i : {2, 5, 6}) {
    const Mamba2Case c = mamba2_cuda_cases()[i];
    expect_repeatable([&] { return forward_case(c); }, context());
    expect_repeatable([&] { return backward_case(c, true); }, context());
  }
}

/// Names of the CUDA kernels that a kernel launches.
std::vector<std::string> launched(const CudaKernel& kernel, const OpSpec& spec) {
  GuardedDeviceBuffer scratch(kernel.scratch_bytes);
  std::vector<GuardedDeviceBuffer> buffers;
  std::vector<std::byte*> operands;
  for (const OperandSpec& operand : spec.operands) {
    buffers.emplace_back(static_cast<size_t>(operand.shape.num_elems()) *
                         dtype_bytes(operand.dtype));
    operands.push_back(buffers.back().data());
  }
  cudaStream_t stream = nullptr;
  BRAID_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  BRAID_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  kernel.launch({.operands = operands, .scratch = scratch.data(), .stream = stream});
  cudaGraph_t graph = nullptr;
  BRAID_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  size_t count = 0;
  BRAID_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  BRAID_CUDA_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::vector<std::string> names;
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    BRAID_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
    if (type == cudaGraphNodeTypeKernel) {
      cudaKernelNodeParams params = {};
      const char* name = nullptr;
      BRAID_CUDA_CHECK(cudaGraphKernelNodeGetParams(node, &params));
      BRAID_CUDA_CHECK(cudaFuncGetName(&name, params.func));
      names.emplace_back(name);
    }
  }
  BRAID_CUDA_CHECK(cudaGraphDestroy(graph));
  BRAID_CUDA_CHECK(cudaStreamDestroy(stream));
  return names;
}

// The scan is Hopper's; the others have a walk and all chunks at once.
TEST_P(Mamba2CudaTest, LaunchesItsOwnKernels) {
  const OpSpec spec = forward_case(mamba2_cuda_cases()[4]).spec();
  const std::vector<std::string> names = launched(make_cuda_kernel(spec, context()), spec);
  const auto has_scan = testing::Contains(testing::HasSubstr("scan_kernel"));
  const auto has_chunks = testing::Contains(testing::HasSubstr("chunks_kernel"));
  if (GetParam() == Mamba2Family::kHopper) {
    EXPECT_THAT(names, testing::AllOf(has_scan, testing::Not(has_chunks)));
  } else {
    EXPECT_THAT(names, testing::AllOf(has_chunks, testing::Not(has_scan)));
  }
}

std::string refusal(const Mamba2Case& c, DType dtype = DType::kBF16) {
  const KernelCase kernel = c.forward(dtype);
  return message_of<ConfigError>([&] { check_mamba2_limits(kernel.spec(), c.a); });
}

// Without a GPU, too.
TEST(Mamba2Limits, NameTheKeyAndTheNearestSettingOfGpus) {
  const Mamba2Attributes a{
      .sequence = 8, .heads = 2, .head_size = 64, .groups = 1, .state = 128, .chunk = 8};
  EXPECT_NO_THROW(check_mamba2_limits(Mamba2Case{a}.forward(DType::kBF16).spec(), a));
  Mamba2Attributes other = a;
  other.head_size = 128;
  EXPECT_THAT(refusal({other}), testing::StartsWith("model.mamba_head_dim = 128: "));
  EXPECT_THAT(refusal({other}),
              testing::HasSubstr("multiples of 8 up to 64; set 64, or runtime.device"));
  other = a;
  other.state = 20;
  EXPECT_THAT(refusal({other}), testing::HasSubstr("model.ssm_state_size = 20: "));
  EXPECT_THAT(refusal({other}), testing::HasSubstr("set 24, or"));
  EXPECT_THAT(refusal({a, 1, 5}), testing::HasSubstr("model.conv_kernel = 5: "));
  EXPECT_THAT(refusal({a}, DType::kF32), testing::HasSubstr("in bfloat16, not f32"));
}

}  // namespace
}  // namespace braid
