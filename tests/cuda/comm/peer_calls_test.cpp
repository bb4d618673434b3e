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
#include "support/row_exchange_cases.h"

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

  template <class T>
  void write(const std::string& buffer, const std::vector<T>& values) {
    BRAID_CUDA_CHECK(cudaMemcpyAsync(place_of(buffer), values.data(), values.size() * sizeof(T),
                                     cudaMemcpyHostToDevice, stream_));
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  template <class T = float>
  std::vector<T> read(const std::string& buffer, size_t count) {
    std::vector<T> values(count);
    BRAID_CUDA_CHECK(cudaMemcpyAsync(values.data(), place_of(buffer), count * sizeof(T),
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

/// Ranks that are threads.
class RanksOnGpus : public ::testing::Test {
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

  /// Calls body(rank, its end of a rendezvous) on a thread per rank, whose device is current.
  template <class Body>
  void on_ranks(int num_ranks, const Body& body) const {
    const auto meeting = make_in_process_rendezvous(num_ranks, 60'000'000'000);
    run_side_by_side(static_cast<size_t>(num_ranks), [&](size_t rank) {
      BRAID_CUDA_CHECK(cudaSetDevice(device_of(static_cast<int>(rank))));
      body(static_cast<int>(rank), *meeting[rank]);
    });
  }

  /// Launches the rank's tasks at a random time, and waits for them.
  static void launch_late(RankOnGpu& on_gpu, int replay, std::mt19937& random) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
    on_gpu.launch(/*as_graph=*/replay % 4 != 0);
    if (!ends(on_gpu.stream(), kLongest)) {
      on_gpu.calls().release();
      throw_device_error("a rank hangs in replay {}", replay);
    }
  }

 private:
  int num_gpus_ = 0;
};

class PeerCallsOnGpus : public RanksOnGpus, public ::testing::WithParamInterface<CallCase> {
 protected:
  void run(const CallCase& call, int num_ranks, int64_t block, int num_replays) {
    on_ranks(num_ranks, [&](int rank, Rendezvous& meeting) {
      run_rank(call, rank, num_ranks, block, num_replays, meeting);
    });
  }

 private:
  void run_rank(const CallCase& call, int rank, int num_ranks, int64_t block, int num_replays,
                Rendezvous& meeting) {
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
      launch_late(on_gpu, replay, random);
      const auto y = on_gpu.read("y", static_cast<size_t>(elems(call.y_blocks)));
      for (size_t i = 0; i < y.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        ASSERT_EQ(y[i], call.expected(x, rank, at / block, at % block, block))
            << "element " << i << " on rank " << rank << " of " << num_ranks << ", replay "
            << replay;
      }
    }
  }
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

constexpr int64_t kRows = 96;  // of a rank
constexpr int64_t kWidth = 36;
constexpr int64_t kExpertsOfRank = 3;

/// Rows go to the ranks with their experts, and come back.
Program rows_program(int rank, int num_ranks) {
  const int64_t experts = kExpertsOfRank * num_ranks;
  const int64_t room = kRows * num_ranks;
  std::string ranks = "0";
  for (int other = 1; other < num_ranks; ++other) {
    ranks += "," + std::to_string(other);
  }
  std::string text = fmt::format(
      "program step rank={} ranks={} events=0\nstream comm kind=comm priority=1\n"
      "group all kind=expert ranks={}\n",
      rank, num_ranks, ranks);
  const auto add = [&](const std::string& name, const std::string& type) {
    text += fmt::format("buffer {} {} activation persistent device\n", name, type);
  };
  add("x", fmt::format("f32 [{},{}]", kRows, kWidth));
  add("weights", fmt::format("f32 [{}]", kRows));
  add("offsets_of_all", fmt::format("i32 [{}]", num_ranks * (experts + 1)));
  add("y", fmt::format("f32 [{},{}]", room, kWidth));
  add("y_weights", fmt::format("f32 [{}]", room));
  add("offsets", fmt::format("i32 [{}]", kExpertsOfRank + 1));
  add("back", fmt::format("f32 [{},{}]", kRows, kWidth));
  const auto attributes = [&](bool has_weights) {
    return fmt::format("{{group=0, experts={}, copies=1, has_weights={}, drops=false}}", experts,
                       has_weights);
  };
  text += "dispatch_rows(x, weights, offsets_of_all -> y, y_weights, offsets) " + attributes(true) +
          " comm comm\n";
  text += "combine_rows(y, offsets_of_all -> back) " + attributes(false) + " comm comm\n";
  return parse_program(text);
}

/// Another one in each replay, the same for all ranks. Often one expert has most rows.
Experts random_experts(int num_ranks, int replay) {
  std::mt19937 random(static_cast<unsigned>(replay));
  Experts experts{.room = kRows * num_ranks};
  const auto many = static_cast<size_t>(kExpertsOfRank * num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::vector<int64_t> counts(many, 0);
    for (int64_t row = 0; row < kRows; ++row) {
      ++counts[random() % 3 == 0 ? random() % many : static_cast<size_t>(replay) % many];
    }
    experts.counts.push_back(counts);
  }
  return experts;
}

using RowCallsOnGpus = RanksOnGpus;

TEST_F(RowCallsOnGpus, BringEachRowThereAndBackWhateverTheSpeedOfRanks) {
  for (const int num_ranks : numbers_of_ranks()) {
    on_ranks(num_ranks, [&](int rank, Rendezvous& meeting) {
      RankOnGpu on_gpu(rows_program(rank, num_ranks), device_of(rank), meeting);
      std::mt19937 random(static_cast<unsigned>(rank));
      for (int replay = 0; replay < 200 && !HasFatalFailure(); ++replay) {
        const Experts experts = random_experts(num_ranks, replay);
        const auto x = data_of(rank, replay, kRows * kWidth);
        const auto weights = data_of(rank, replay + 1000, kRows);
        on_gpu.write("x", x);
        on_gpu.write("weights", weights);
        on_gpu.write("offsets_of_all", offsets_of_all(experts));
        launch_late(on_gpu, replay, random);
        ASSERT_EQ(on_gpu.read("back", x.size()), x) << "rank " << rank << ", replay " << replay;
        const auto held = on_gpu.read<int32_t>("offsets", kExpertsOfRank + 1);
        const auto first = static_cast<size_t>(kExpertsOfRank * rank);
        int64_t expected = 0;
        for (size_t e = 0; e < kExpertsOfRank; ++e) {
          for (const auto& counts : experts.counts) {
            expected += counts[first + e];
          }
          ASSERT_EQ(held[e + 1], expected);
        }
      }
    });
  }
}

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
