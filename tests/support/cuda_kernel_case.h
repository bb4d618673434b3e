#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <optional>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/device_needs.h"
#include "backends/cuda/kernel.h"
#include "support/kernel_harness.h"

/// CUDA kernels beside the CPU's: a KernelCase whose `run` happens on the device, and the same case
/// in f64.
namespace braid {

/// Why no CUDA kernel can run here; empty if one can.
inline std::string why_no_gpu() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    return fmt::format("no GPU: {}", cudaGetErrorString(status));
  }
  return count > 0 ? "" : "no GPU: CUDA finds no device";
}

/// Tests on device 0 with a context of the suite; skipped, with the reason, where there is no GPU.
class CudaKernelTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (why_no_gpu().empty()) {
      context_ = std::make_unique<CudaContext>(0, "");
    }
  }
  static void TearDownTestSuite() { context_.reset(); }
  void SetUp() override {
    if (context_ == nullptr) {
      GTEST_SKIP() << why_no_gpu();
    }
  }
  static CudaContext& context() { return *context_; }

 private:
  static inline std::unique_ptr<CudaContext> context_;
};

/// Device memory with canaries on both sides.
class GuardedDeviceBuffer {
 public:
  explicit GuardedDeviceBuffer(size_t bytes) : bytes_(bytes) {
    void* data = nullptr;
    BRAID_CUDA_CHECK(cudaMalloc(&data, bytes + 2 * kGuardBytes));
    storage_.reset(static_cast<std::byte*>(data));
    BRAID_CUDA_CHECK(cudaMemset(data, kCanary, bytes + 2 * kGuardBytes));
  }

  std::byte* data() const { return storage_.get() + kGuardBytes; }
  void upload(const std::vector<std::byte>& from) {
    BRAID_CUDA_CHECK(cudaMemcpy(data(), from.data(), bytes_, cudaMemcpyHostToDevice));
  }
  std::vector<std::byte> download() const { return copy(data(), bytes_); }
  /// All bits 1: a NaN in every floating-point type.
  void poison() { BRAID_CUDA_CHECK(cudaMemset(data(), 0xFF, bytes_)); }
  bool guards_intact() const {
    const std::vector<std::byte> canaries(kGuardBytes, std::byte{kCanary});
    return copy(storage_.get(), kGuardBytes) == canaries &&
           copy(data() + bytes_, kGuardBytes) == canaries;
  }

 private:
  static constexpr size_t kGuardBytes = 1024;  // a multiple of the alignment that arenas give
  static constexpr int kCanary = 0xA5;
  struct Free {
    void operator()(std::byte* data) const { ignore_error(cudaFree(data)); }
  };
  static std::vector<std::byte> copy(const std::byte* from, size_t bytes) {
    std::vector<std::byte> to(bytes);
    BRAID_CUDA_CHECK(cudaMemcpy(to.data(), from, bytes, cudaMemcpyDeviceToHost));
    return to;
  }

  size_t bytes_;
  std::unique_ptr<std::byte, Free> storage_;
};

inline std::vector<double> to_doubles(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<double> values(bytes.size() / dtype_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = load_as_double(dtype, bytes.data() + i * dtype_bytes(dtype));
  }
  return values;
}

enum class CudaLaunch { kEager, kGraph };

/// Runs the case on the device as KernelCase::run does on the host, in a stream of its own; its
/// operands are then the device's. kGraph: captured into a CUDA graph that is replayed once.
inline void run_on_cuda(KernelCase& kernel_case, const CudaKernel& kernel,
                        CudaLaunch how = CudaLaunch::kEager) {
  const OpSpec& spec = kernel_case.spec();
  GuardedDeviceBuffer scratch(kernel.scratch_bytes);
  scratch.poison();
  std::vector<GuardedDeviceBuffer> buffers;
  std::vector<std::byte*> operands;
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    buffers.emplace_back(kernel_case.bytes(i).size());
    buffers.back().upload(kernel_case.bytes(i));
    operands.push_back(buffers.back().data());
  }
  cudaStream_t stream = nullptr;
  BRAID_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  BRAID_CUDA_CHECK(cudaDeviceSynchronize());
  const CudaKernelArgs args{.operands = operands, .scratch = scratch.data(), .stream = stream};
  if (how == CudaLaunch::kGraph) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    BRAID_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    kernel.launch(args);
    BRAID_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    BRAID_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    BRAID_CUDA_CHECK(cudaGraphLaunch(executable, stream));
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
    BRAID_CUDA_CHECK(cudaGraphExecDestroy(executable));
    BRAID_CUDA_CHECK(cudaGraphDestroy(graph));
  } else {
    kernel.launch(args);
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
  }
  BRAID_CUDA_CHECK(cudaStreamDestroy(stream));
  EXPECT_TRUE(scratch.guards_intact()) << spec.op << ": wrote outside of its scratch";
  for (size_t i = 0; i < buffers.size(); ++i) {
    EXPECT_TRUE(buffers[i].guards_intact()) << spec.op << ": wrote outside of operand " << i;
    const std::vector<std::byte> after = buffers[i].download();
    if (!writes(spec.operands[i].access)) {
      EXPECT_TRUE(after == kernel_case.bytes(i))
          << spec.op << ": changed its read-only operand " << i;
    }
    kernel_case.set(i, to_doubles(spec.operands[i].dtype, after));
  }
}

/// With the kernel that steps use.
inline void run_on_cuda(KernelCase& kernel_case, CudaContext& context,
                        CudaLaunch how = CudaLaunch::kEager) {
  const OpSpec& spec = kernel_case.spec();
  check_spec(spec);
  const CudaKernel kernel = make_cuda_kernel(spec, context);
  EXPECT_LE(kernel.scratch_bytes, max_cuda_scratch_bytes(spec, /*repeatable=*/true))
      << spec.op << ": more scratch than memory checks count with";
  run_on_cuda(kernel_case, kernel, how);
}

/// The case with all floating-point operands in f64, holding the same values, after a run on the
/// CPU. `kept`: an operand that has the same type for all types of data.
inline KernelCase f64_reference(const KernelCase& kernel_case, int num_workers = 2,
                                std::optional<size_t> kept = {}) {
  OpSpec spec = kernel_case.spec();
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    if (is_floating_point(spec.operands[i].dtype) && i != kept) {
      spec.operands[i].dtype = DType::kF64;
    }
  }
  KernelCase reference(spec);
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    reference.set(i, kernel_case.values(i));
  }
  reference.run(num_workers);
  return reference;
}

/// |a - b| / |b|, Euclidean; NaN if either has one.
inline double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return std::sqrt(difference / dot(b, b));
}

}  // namespace braid
