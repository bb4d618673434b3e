// Collectives of NCCL on symmetric windows, between ranks that are threads of this process, each on
// a GPU of its own.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include "backends/cuda/comm/communicators.h"
#include "backends/cuda/comm/wait_for_event.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/run_ranks.h"
#include "base/errors.h"
#include "ir/text.h"
#include "passes/streams/comm_engine.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Values = std::vector<float>;

struct WindowCase {
  const char* name;
  CommEngine engine;
  const char* op;
  bool gathers = false;  ///< x is one block, else one per rank
  bool scatters = false;
  /// Element i of block b of y on `rank`.
  std::function<float(const std::vector<Values>& x, size_t rank, size_t b, size_t i, size_t block)>
      expected;
};

void PrintTo(const WindowCase& call, std::ostream* out) {
  *out << call.name;
}

/// Whole numbers, so that sums are exact in any order.
Values data_of(size_t rank, int replay, size_t elems) {
  std::mt19937 random(static_cast<unsigned>(rank * 7919) + static_cast<unsigned>(replay));
  Values values(elems);
  std::ranges::generate(
      values, [&] { return static_cast<float>(static_cast<int>(random() % 2001) - 1000); });
  return values;
}

float sum_at(const std::vector<Values>& x, size_t element) {
  float sum = 0;
  for (const Values& values : x) {
    sum += values[element];
  }
  return sum;
}

/// One rank with x and y in one piece of NCCL's memory.
class RankOnWindows {
 public:
  static constexpr int64_t kMemoryBytes = int64_t{64} << 20;

  RankOnWindows(Program program, int64_t begin, Rendezvous& rendezvous)
      : program_(std::move(program)),
        memory_(kMemoryBytes, "operands", nccl_window_allocator()),
        stream_(1) {
    for (const Buffer& buffer : program_.buffers) {
      offsets_.push_back(begin);
      begin += (buffer.size_bytes() + 511) / 512 * 512;
    }
    check(begin <= kMemoryBytes, "operands of {} bytes", begin);
    communicators_ = std::make_unique<Communicators>(std::span(&program_, 1), rendezvous,
                                                     CommunicatorOptions{.windows = true});
    communicators_->register_windows(
        std::span(&program_, 1),
        {.memory = {{memory_.data(), memory_.size_bytes()}},
         .address = [this](size_t, TaskId task, size_t operand) {
           return place_of(program_.operands_of(program_.tasks[task.index()])[operand].buffer);
         }});
    kernel_ = communicators_->make_kernel(program_, program_.tasks[0]);
    CudaCapture capturing(stream_);
    enqueue();
    graph_ = CudaGraphExec(capturing.end(), stream_);
  }
  ~RankOnWindows() {
    graph_ = CudaGraphExec();
    communicators_.reset();  // before the memory that it knows
  }
  RankOnWindows(const RankOnWindows&) = delete;
  RankOnWindows& operator=(const RankOnWindows&) = delete;

  /// y after a step with this x.
  Values run(const Values& x, size_t y_elems, bool as_graph) {
    BRAID_CUDA_CHECK(cudaMemcpyAsync(place_of(BufferId(0)), x.data(), x.size() * sizeof(float),
                                     cudaMemcpyHostToDevice, stream_));
    BRAID_CUDA_CHECK(
        cudaMemsetAsync(place_of(BufferId(1)), 0xFF, y_elems * sizeof(float), stream_));
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream_));
    if (as_graph) {
      BRAID_CUDA_CHECK(cudaGraphLaunch(graph_, stream_));
    } else {
      enqueue();
    }
    const CudaEvent ended(EventTiming::kNone);
    BRAID_CUDA_CHECK(cudaEventRecord(ended, stream_));
    check(wait_for_event(
              ended, [&] { return communicators_->fault(); }, std::chrono::seconds(20)),
          "rank {} hangs", program_.rank);
    Values y(y_elems);
    BRAID_CUDA_CHECK(cudaMemcpy(y.data(), place_of(BufferId(1)), y_elems * sizeof(float),
                                cudaMemcpyDeviceToHost));
    return y;
  }

  const Communicators& communicators() const { return *communicators_; }

 private:
  std::byte* place_of(BufferId buffer) const { return memory_.data() + offsets_[buffer.index()]; }

  void enqueue() {
    const std::array operands{place_of(BufferId(0)), place_of(BufferId(1))};
    kernel_.launch({.operands = operands, .scratch = nullptr, .stream = stream_});
  }

  Program program_;
  DeviceArena memory_;
  CudaStream stream_;
  std::vector<int64_t> offsets_;  // by buffer
  std::unique_ptr<Communicators> communicators_;
  CudaKernel kernel_;
  CudaGraphExec graph_;
};

class NcclWindows : public ::testing::TestWithParam<WindowCase> {
 protected:
  void SetUp() override {
    constexpr int kKeep = 0;
    setenv("NCCL_NVLS_ENABLE", "0", kKeep);  // multicast is no part of this
    int num_gpus = 0;
    if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus < 2) {
      GTEST_SKIP() << "needs 2 GPUs";
    }
    for (const std::string& reason : {why_no_nccl(), why_no_nccl_windows()}) {
      if (!reason.empty()) {
        GTEST_SKIP() << reason;
      }
    }
    num_ranks_ = static_cast<size_t>(std::min(num_gpus, 8));
  }

  size_t x_blocks() const { return GetParam().gathers ? 1 : num_ranks_; }
  size_t y_blocks() const { return GetParam().scatters ? 1 : num_ranks_; }

  Program program_of(size_t rank, size_t block) const {
    std::string ranks = "0";
    for (size_t other = 1; other < num_ranks_; ++other) {
      ranks += "," + std::to_string(other);
    }
    const Program program = parse_program(fmt::format(
        "program step rank={} ranks={} events=0\n"
        "stream comm kind=comm priority=1\n"
        "group all kind=tensor ranks={}\n"
        "buffer x f32 [{}] activation persistent device\n"
        "buffer y f32 [{}] activation persistent device\n"
        "{}(x -> y) {{group=0}} comm comm\n",
        rank, num_ranks_, ranks, x_blocks() * block, y_blocks() * block, GetParam().op));
    return comm_engine(program, {.engine = GetParam().engine}, {}).program;
  }

  /// Lines about missing windows, by rank. `begins`: where the operands of each rank begin.
  std::vector<std::vector<std::string>> run(size_t block, int num_replays,
                                            const std::vector<int64_t>& begins) {
    std::vector<std::vector<std::string>> without(num_ranks_);
    const auto meeting = make_in_process_rendezvous(static_cast<int>(num_ranks_), 60'000'000'000);
    run_side_by_side(num_ranks_, [&](size_t rank) {
      BRAID_CUDA_CHECK(cudaSetDevice(static_cast<int>(rank)));
      RankOnWindows on_gpu(program_of(rank, block), begins[rank], *meeting[rank]);
      without[rank] = on_gpu.communicators().without_windows();
      replay(on_gpu, rank, block, num_replays);
    });
    return without;
  }

  std::vector<int64_t> everywhere(int64_t begin) const {
    return std::vector<int64_t>(num_ranks_, begin);
  }
  size_t num_ranks() const { return num_ranks_; }

 private:
  void replay(RankOnWindows& on_gpu, size_t rank, size_t block, int num_replays) const {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int replay = 0; replay < num_replays; ++replay) {
      std::vector<Values> x;
      for (size_t other = 0; other < num_ranks_; ++other) {
        x.push_back(data_of(other, replay, x_blocks() * block));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
      const Values y = on_gpu.run(x[rank], y_blocks() * block, /*as_graph=*/replay % 4 != 0);
      size_t num_wrong = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        num_wrong += y[i] == GetParam().expected(x, rank, i / block, i % block, block) ? 0 : 1;
      }
      // To the end even then, since the other ranks count on this one.
      EXPECT_EQ(num_wrong, 0u) << "of " << y.size() << " elements on rank " << rank << ", replay "
                               << replay;
    }
  }

  size_t num_ranks_ = 0;
};

TEST_P(NcclWindows, AreRightInEveryReplayWhateverTheSpeedOfRanks) {
  for (const auto& lines : run(1003, 200, everywhere(512))) {
    EXPECT_THAT(lines, IsEmpty());
  }
}

TEST_P(NcclWindows, AreRightForLargeBlocks) {
  for (const auto& lines : run((size_t{1} << 19) + 3, 5, everywhere(0))) {
    EXPECT_THAT(lines, IsEmpty());
  }
}

// NCCL would take the operands of rank 0 for those of rank 1.
TEST_P(NcclWindows, AreNotUsedWhereOperandsLieApart) {
  std::vector<int64_t> begins = everywhere(512);
  begins[1] = 4096;
  for (const auto& lines : run(1003, 20, begins)) {
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_THAT(lines.front(), HasSubstr("operands lie elsewhere in the memory of rank 1"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    , NcclWindows,
    ::testing::Values(
        WindowCase{"all_gather", CommEngine::kSm, "all_gather", true, false,
                   [](const auto& x, size_t, size_t b, size_t i, size_t) { return x[b][i]; }},
        WindowCase{"all_gather_by_copies", CommEngine::kNcclCopy, "all_gather", true, false,
                   [](const auto& x, size_t, size_t b, size_t i, size_t) { return x[b][i]; }},
        WindowCase{"all_to_all_by_copies", CommEngine::kNcclCopy, "all_to_all", false, false,
                   [](const auto& x, size_t rank, size_t b, size_t i, size_t block) {
                     return x[b][rank * block + i];
                   }},
        WindowCase{"reduce_scatter", CommEngine::kSm, "reduce_scatter", false, true,
                   [](const auto& x, size_t rank, size_t, size_t i, size_t block) {
                     return sum_at(x, rank * block + i);
                   }},
        WindowCase{"all_reduce", CommEngine::kSm, "all_reduce", false, false,
                   [](const auto& x, size_t, size_t b, size_t i, size_t block) {
                     return sum_at(x, b * block + i);
                   }}),
    [](const auto& call) { return std::string(call.param.name); });

}  // namespace
}  // namespace braid
