#include "ops/offload.h"

#include <algorithm>

#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/pinned_arena.h"
#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using OffloadCudaTest = CudaKernelTest;

OpSpec spec_of(const char* op, int64_t bytes) {
  return {op, {}, {read(DType::kU8, {bytes}), write(DType::kU8, {bytes})}};
}

/// Device to host, then back to another place of the device, in a stream of its own.
struct RoundTrip {
  static constexpr int64_t kBytes = 100003;

  explicit RoundTrip(CudaContext& context)
      : out(make_cuda_kernel(spec_of("offload", kBytes), context)),
        back(make_cuda_kernel(spec_of("reload", kBytes), context)) {
    std::vector<std::byte> bytes(kBytes);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(i * 37 % 251);
    }
    BRAID_CUDA_CHECK(cudaMemcpy(from.data(), bytes.data(), kBytes, cudaMemcpyHostToDevice));
    expected = std::move(bytes);
  }

  void enqueue() const {
    const std::array<std::byte*, 2> away = {from.data(), host.data()};
    const std::array<std::byte*, 2> home = {host.data(), to.data()};
    out.launch({.operands = away, .stream = stream});
    back.launch({.operands = home, .stream = stream});
  }

  void expect_done() const {
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), host.data()));
    std::vector<std::byte> bytes(kBytes);
    BRAID_CUDA_CHECK(cudaMemcpy(bytes.data(), to.data(), kBytes, cudaMemcpyDeviceToHost));
    EXPECT_TRUE(bytes == expected);
  }

  CudaKernel out;
  CudaKernel back;
  DeviceArena from{kBytes, "from"};
  DeviceArena to{kBytes, "to"};
  PinnedArena host{kBytes, "host"};
  CudaStream stream{0};
  std::vector<std::byte> expected;
};

TEST_F(OffloadCudaTest, BytesComeBack) {
  const RoundTrip trip(context());
  trip.enqueue();
  trip.expect_done();
}

TEST_F(OffloadCudaTest, BytesComeBackInAGraph) {
  const RoundTrip trip(context());
  CudaCapture capture(trip.stream);
  trip.enqueue();
  const CudaGraphExec graph(capture.end(), trip.stream);
  BRAID_CUDA_CHECK(cudaGraphLaunch(graph, trip.stream));
  trip.expect_done();
}

TEST_F(OffloadCudaTest, PinnedArenasAreZeroedAndPageLocked) {
  PinnedArena empty(0, "nothing");
  EXPECT_EQ(empty.data(), nullptr);
  PinnedArena arena(5000, "arena");
  EXPECT_EQ(arena.size_bytes(), 5000);
  EXPECT_TRUE(std::all_of(arena.data(), arena.data() + arena.size_bytes(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
  cudaPointerAttributes attributes{};
  BRAID_CUDA_CHECK(cudaPointerGetAttributes(&attributes, arena.data()));
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  const std::byte* const data = arena.data();
  empty = std::move(arena);
  EXPECT_EQ(empty.data(), data);
}

TEST_F(OffloadCudaTest, MoreThanTheHostHasIsAnError) {
  EXPECT_THROW(PinnedArena(int64_t{1} << 46, "too much"), DeviceError);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace braid
