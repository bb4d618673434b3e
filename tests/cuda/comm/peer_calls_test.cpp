// Communication by copy engines between ranks that are threads of this process, each on a GPU of
// its own; where there are fewer GPUs than ranks, two share one.
#include "backends/cuda/comm/peer_calls.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/run_ranks.h"
#include "base/errors.h"
#include "ir/text.h"
#include "passes/streams/comm_engine.h"

namespace braid {
namespace {

constexpr auto kLongest = std::chrono::seconds(20);

/// Whether all of the stream's work ends in time.
bool ends(cudaStream_t stream, std::chrono::milliseconds longest) {
  const auto until = std::chrono::steady_clock::now() + longest;
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    if (std::chrono::steady_clock::now() > until) {
      return false;
    }
    std::this_thread::yield();
  }
  BRAID_CUDA_CHECK(cudaStreamQuery(stream));
  return true;
}

/// One rank of a program whose buffers are persistent, with memory and a stream of its own.
class RankOnGpu {
 public:
  RankOnGpu(Program program, int device, Rendezvous& rendezvous)
      : program_(std::move(program)),
        context_(device, ""),
        calls_(program_.rank, {&program_, 1}),
        stream_(1) {
    int64_t bytes = 0;
    for (const Buffer& buffer : program_.buffers) {
      offsets_.push_back(bytes);
      bytes += (buffer.size_bytes() + 255) / 256 * 256;
    }
    memory_ = DeviceArena(bytes, "buffers");
    for (const Task& task : program_.tasks) {
      const OpSpec& spec = program_.spec(task);
      const TaskId id(kernels_.size());
      own_kernels_.push_back(calls_.kernel(0, id) == nullptr ? make_cuda_kernel(spec, context_)
                                                             : CudaKernel());
      kernels_.push_back(calls_.kernel(0, id));
    }
    calls_.find_peers({}, rendezvous);
    calls_.connect(
        {.memory = {{memory_.data(), memory_.size_bytes()}},
         .address = [this](size_t, TaskId task, size_t operand) { return address(task, operand); },
         .otherwise = [this](size_t, TaskId) -> CudaKernel {
           throw_internal_error("rank {} reaches nobody", program_.rank);
         }},
        rendezvous);
    {
      CudaCapture capturing(stream_);
      enqueue();
      graph_ = CudaGraphExec(capturing.end(), stream_);
    }
  }

  void enqueue() {
    for (size_t i = 0; i < kernels_.size(); ++i) {
      const Task& task = program_.tasks[i];
      std::vector<std::byte*> operands;
      for (size_t k = 0; k < program_.spec(task).operands.size(); ++k) {
        operands.push_back(address(TaskId(i), k));
      }
      const CudaKernel& kernel = kernels_[i] != nullptr ? *kernels_[i] : own_kernels_[i];
      kernel.launch({.operands = operands, .scratch = nullptr, .stream = stream_});
    }
  }

  void launch(bool as_graph) {
    if (as_graph) {
      BRAID_CUDA_CHECK(cudaGraphLaunch(graph_, stream_));
    } else {
      enqueue();
    }
  }

  void write(const std::string& buffer, const std::vector<float>& values) {
    BRAID_CUDA_CHECK(cudaMemcpyAsync(place_of(buffer), values.data(), values.size() * sizeof(float),
                                     cudaMemcpyHostToDevice, stream_));
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  std::vector<float> read(const std::string& buffer, size_t count) {
    std::vector<float> values(count);
    BRAID_CUDA_CHECK(cudaMemcpyAsync(values.data(), place_of(buffer), count * sizeof(float),
                                     cudaMemcpyDeviceToHost, stream_));
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream_));
    return values;
  }

  cudaStream_t stream() const { return stream_; }
  PeerCalls& calls() { return calls_; }

 private:
  std::byte* address(TaskId task, size_t operand) const {
    const BufferRange range = program_.operands_of(program_.tasks[task.index()])[operand];
    const Buffer& buffer = program_.buffers[range.buffer.index()];
    return memory_.data() + offsets_[range.buffer.index()] +
           range.begin * static_cast<int64_t>(dtype_bytes(buffer.dtype));
  }

  std::byte* place_of(const std::string& name) const {
    const auto found = std::ranges::find(program_.buffers, name, &Buffer::name);
    check(found != program_.buffers.end(), "no buffer {}", name);
    return memory_.data() + offsets_[static_cast<size_t>(found - program_.buffers.begin())];
  }

  Program program_;
  CudaContext context_;
  PeerCalls calls_;
  CudaStream stream_;
  DeviceArena memory_;
  std::vector<int64_t> offsets_;  // by buffer
  std::vector<const CudaKernel*> kernels_;
  std::vector<CudaKernel> own_kernels_;
  CudaGraphExec graph_;
};

/// x of `x_elems` on each rank, y of `y_elems`, and one task, as copies.
Program program_of(int rank, int num_ranks, int64_t x_elems, int64_t y_elems,
                   const std::string& tasks) {
  std::string ranks = "0";
  for (int other = 1; other < num_ranks; ++other) {
    ranks += "," + std::to_string(other);
  }
  const Program program =
      parse_program(fmt::format("program step rank={} ranks={} events=0\n"
                                "stream comm kind=comm priority=1\n"
                                "group all kind=tensor ranks={}\n"
                                "buffer x f32 [{}] activation persistent device\n"
                                "buffer y f32 [{}] activation persistent device\n",
                                rank, num_ranks, ranks, x_elems, y_elems) +
                    tasks);
  return comm_engine(program, {.engine = CommEngine::kCopy}, {}).program;
}

/// What every rank sends in a replay: whole numbers, so that sums are exact.
std::vector<float> data_of(int rank, int replay, int64_t elems) {
  std::mt19937 random(static_cast<unsigned>(rank * 7919 + replay));
  std::vector<float> values;
  for (int64_t i = 0; i < elems; ++i) {
    values.push_back(static_cast<float>(static_cast<int>(random() % 2001) - 1000));
  }
  return values;
}

struct CallCase {
  const char* name;
  int64_t x_blocks;  ///< per rank, in blocks; -1: one per rank
  int64_t y_blocks;
  /// The tasks of a rank.
  std::function<std::string(int rank, int num_ranks)> tasks;
  /// Element i of block b of y on `rank`, from the x of all ranks.
  std::function<float(const std::vector<std::vector<float>>& x, int rank, int64_t b, int64_t i,
                      int64_t block)>
      expected;
};

void PrintTo(const CallCase& call, std::ostream* out) {
  *out << call.name;
}

float sum_at(const std::vector<std::vector<float>>& x, int64_t element) {
  float sum = 0;
  for (const auto& values : x) {
    sum += values[static_cast<size_t>(element)];
  }
  return sum;
}

class PeerCallsOnGpus : public ::testing::TestWithParam<CallCase> {
 protected:
  void SetUp() override {
    if (cudaGetDeviceCount(&num_gpus_) != cudaSuccess || num_gpus_ < 1) {
      GTEST_SKIP() << "needs a GPU";
    }
  }

  std::vector<int> numbers_of_ranks() const {
    std::vector<int> numbers;
    for (const int ranks : {2, 3, 4, 8}) {
      if (ranks <= std::max(2, num_gpus_)) {
        numbers.push_back(ranks);
      }
    }
    return numbers;
  }

  int device_of(int rank) const { return rank % num_gpus_; }

  void run(const CallCase& call, int num_ranks, int64_t block, int num_replays) {
    const auto meeting = make_in_process_rendezvous(num_ranks, 60'000'000'000);
    run_side_by_side(static_cast<size_t>(num_ranks), [&](size_t rank) {
      run_rank(call, static_cast<int>(rank), num_ranks, block, num_replays, *meeting[rank]);
    });
  }

 private:
  void run_rank(const CallCase& call, int rank, int num_ranks, int64_t block, int num_replays,
                Rendezvous& meeting) {
    BRAID_CUDA_CHECK(cudaSetDevice(device_of(rank)));
    const auto elems = [&](int64_t blocks) { return block * (blocks < 0 ? num_ranks : blocks); };
    RankOnGpu on_gpu(program_of(rank, num_ranks, elems(call.x_blocks), elems(call.y_blocks),
                                call.tasks(rank, num_ranks)),
                     device_of(rank), meeting);
    std::mt19937 random(static_cast<unsigned>(rank));
    for (int replay = 0; replay < num_replays && !HasFatalFailure(); ++replay) {
      std::vector<std::vector<float>> x;
      for (int other = 0; other < num_ranks; ++other) {
        x.push_back(data_of(other, replay, elems(call.x_blocks)));
      }
      on_gpu.write("x", x[static_cast<size_t>(rank)]);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
      on_gpu.launch(/*as_graph=*/replay % 4 != 0);
      if (!ends(on_gpu.stream(), kLongest)) {
        on_gpu.calls().release();
        throw_device_error("rank {} of {} hangs in replay {} of {}", rank, num_ranks, replay,
                           call.name);
      }
      const auto y = on_gpu.read("y", static_cast<size_t>(elems(call.y_blocks)));
      for (size_t i = 0; i < y.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        ASSERT_EQ(y[i], call.expected(x, rank, at / block, at % block, block))
            << "element " << i << " on rank " << rank << " of " << num_ranks << ", replay "
            << replay;
      }
    }
  }

  int num_gpus_ = 0;
};

TEST_P(PeerCallsOnGpus, AreRightInEveryReplayWhateverTheSpeedOfRanks) {
  for (const int num_ranks : numbers_of_ranks()) {
    run(GetParam(), num_ranks, 1003, 200);
  }
}

TEST_P(PeerCallsOnGpus, AreRightForLargeBlocks) {
  for (const int num_ranks : numbers_of_ranks()) {
    run(GetParam(), num_ranks, (int64_t{1} << 20) + 3, 3);
  }
}

std::string one(const std::string& task) {
  return task + " comm comm\n";
}

INSTANTIATE_TEST_SUITE_P(
    , PeerCallsOnGpus,
    ::testing::Values(
        CallCase{"all_gather", 1, -1, [](int, int) { return one("all_gather(x -> y) {group=0}"); },
                 [](const auto& x, int, int64_t b, int64_t i, int64_t) {
                   return x[static_cast<size_t>(b)][static_cast<size_t>(i)];
                 }},
        CallCase{"all_to_all", -1, -1, [](int, int) { return one("all_to_all(x -> y) {group=0}"); },
                 [](const auto& x, int rank, int64_t b, int64_t i, int64_t block) {
                   return x[static_cast<size_t>(b)][static_cast<size_t>(rank * block + i)];
                 }},
        CallCase{"reduce_scatter", -1, 1,
                 [](int, int) { return one("reduce_scatter(x -> y) {group=0}"); },
                 [](const auto& x, int rank, int64_t, int64_t i, int64_t block) {
                   return sum_at(x, rank * block + i);
                 }},
        CallCase{"all_reduce", -1, -1, [](int, int) { return one("all_reduce(x -> y) {group=0}"); },
                 [](const auto& x, int, int64_t b, int64_t i, int64_t block) {
                   return sum_at(x, b * block + i);
                 }},
        CallCase{"ring_shift", 1, 1,
                 [](int, int) { return one("ring_shift(x -> y) {group=0, shift=-1}"); },
                 [](const auto& x, int rank, int64_t, int64_t i, int64_t) {
                   return x[static_cast<size_t>(rank + 1) % x.size()][static_cast<size_t>(i)];
                 }},
        // From each rank to the next one: the last receives before it sends, which breaks the ring.
        CallCase{"messages", 1, 1,
                 [](int rank, int num_ranks) {
                   const std::string to = one(fmt::format("send(x) {{group=0, peer={}, channel=0}}",
                                                          (rank + 1) % num_ranks));
                   const std::string from =
                       one(fmt::format("recv(-> y) {{group=0, peer={}, channel=0}}",
                                       (rank + num_ranks - 1) % num_ranks));
                   return rank + 1 == num_ranks ? from + to : to + from;
                 },
                 [](const auto& x, int rank, int64_t, int64_t i, int64_t) {
                   const size_t from = (static_cast<size_t>(rank) + x.size() - 1) % x.size();
                   return x[from][static_cast<size_t>(i)];
                 }},
        // Several in a row, in which each result is the next one's operand.
        CallCase{"one_after_the_other", 1, 1,
                 [](int, int) {
                   return one("ring_shift(x -> y) {group=0, shift=1}") +
                          one("ring_shift(y -> x) {group=0, shift=1}") +
                          one("ring_shift(x -> y) {group=0, shift=-1}");
                 },
                 [](const auto& x, int rank, int64_t, int64_t i, int64_t) {
                   const size_t from = (static_cast<size_t>(rank) + x.size() - 1) % x.size();
                   return x[from][static_cast<size_t>(i)];
                 }}),
    [](const auto& call) { return std::string(call.param.name); });

// Rank 1 never comes: rank 0 waits until it is released, as the executor does when a rank fails.
TEST(PeerCallsRelease, EndsWaitsForARankThatNeverComes) {
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus < 1) {
    GTEST_SKIP() << "needs a GPU";
  }
  for (const bool as_graph : {false, true}) {
    const auto board = make_in_process_rendezvous(2, 60'000'000'000);
    std::vector<std::unique_ptr<RankOnGpu>> ranks(2);
    run_side_by_side(2, [&](size_t rank) {
      const int device = static_cast<int>(rank) % num_gpus;
      BRAID_CUDA_CHECK(cudaSetDevice(device));
      ranks[rank] = std::make_unique<RankOnGpu>(
          program_of(static_cast<int>(rank), 2, 1000, 2000, one("all_gather(x -> y) {group=0}")),
          device, *board[rank]);
    });
    BRAID_CUDA_CHECK(cudaSetDevice(0));
    ranks[0]->launch(as_graph);
    EXPECT_FALSE(ends(ranks[0]->stream(), std::chrono::milliseconds(200)));
    ranks[0]->calls().release();
    EXPECT_TRUE(ends(ranks[0]->stream(), kLongest));
    ranks.clear();
  }
}

}  // namespace
}  // namespace braid
