// Rows of experts that ranks exchange in blocks by NCCL, each rank a thread with a GPU: the step is
// one graph, replayed with other loads each time.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "backends/cuda/comm/communicators.h"
#include "backends/run_ranks.h"
#include "ir/text.h"
#include "support/cuda_executors.h"
#include "support/row_blocks_cases.h"

namespace braid {
namespace {

constexpr int kMostRanks = 4;
constexpr int kReplays = 20;
constexpr int64_t kLocalExperts = 3;
constexpr int64_t kRows = 96;  // of a rank
constexpr int64_t kWidth = 40;
constexpr int64_t kBlockRows = 37;  // fewer than some pairs have

std::string why_not_here() {
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus < 2) {
    return "needs 2 GPUs";
  }
  return why_no_nccl();
}

/// Other loads in each replay, the same for all ranks.
BlocksCase case_of(int num_ranks, int replay) {
  return {random_loads(num_ranks, kLocalExperts, 1, kRows, static_cast<uint64_t>(replay)),
          kBlockRows, DType::kF32, kWidth};
}

std::string attributes_text(const BlocksCase& c, int rank, bool held, bool has_weights) {
  return fmt::format(
      "{{member={}, experts={}, copies=1, rows={}, block_rows={}, has_weights={}, held={}, "
      "drops=false}}",
      rank, c.experts.experts(), kRows, kBlockRows, has_weights, held);
}

/// Rows go to the ranks with their experts, and come back.
Program program_of(int rank, int num_ranks) {
  const BlocksCase c = case_of(num_ranks, 0);
  std::string ranks = "0";
  for (int other = 1; other < num_ranks; ++other) {
    ranks += "," + std::to_string(other);
  }
  std::string text = fmt::format(
      "program step rank={} ranks={} events=0\nstream comm kind=comm priority=1\n"
      "group all kind=expert ranks={}\n",
      rank, num_ranks, ranks);
  const auto add = [&](const std::string& name, const std::string& type, bool lasts) {
    text += fmt::format("buffer {} {} activation {} device\n", name, type,
                        lasts ? "persistent" : "step");
  };
  const auto blocks_type = [&](bool has_weights) {
    return fmt::format("u8 [{}]", blocks_of(c, Access::kWrite, has_weights).shape[0]);
  };
  add("x", fmt::format("f32 [{},{}]", kRows, kWidth), true);
  add("weights", fmt::format("f32 [{}]", kRows), true);
  add("offsets_of_all", fmt::format("i32 [{}]", num_ranks * (c.experts.experts() + 1)), true);
  add("sent", blocks_type(true), false);
  add("received", blocks_type(true), false);
  add("y", fmt::format("f32 [{},{}]", c.room(), kWidth), true);
  add("y_weights", fmt::format("f32 [{}]", c.room()), true);
  add("offsets", fmt::format("i32 [{}]", kLocalExperts + 1), true);
  add("answer", blocks_type(false), false);
  add("answered", blocks_type(false), false);
  add("back", fmt::format("f32 [{},{}]", kRows, kWidth), true);
  text += "rows_to_blocks(x, weights, offsets_of_all -> sent) " +
          attributes_text(c, rank, false, true) + " comm comm\n";
  text += "all_to_all(sent -> received) {group=0} comm comm\n";
  text += "blocks_to_rows(received, offsets_of_all -> y, y_weights, offsets) " +
          attributes_text(c, rank, true, true) + " comm comm\n";
  text += "rows_to_blocks(y, offsets_of_all -> answer) " + attributes_text(c, rank, true, false) +
          " comm comm\n";
  text += "all_to_all(answer -> answered) {group=0} comm comm\n";
  text += "blocks_to_rows(answered, offsets_of_all -> back) " +
          attributes_text(c, rank, false, false) + " comm comm\n";
  return parse_program(text);
}

/// A rank with a device of its own.
struct RankOnDevice {
  CudaContext context;
  std::unique_ptr<CudaExecutor> executor;

  RankOnDevice(int rank, int num_ranks, Rendezvous& meeting) : context(rank, "") {
    std::vector<Program> programs{program_of(rank, num_ranks)};
    MemoryPlan plan = memory_of(programs);
    executor = std::make_unique<CudaExecutor>(
        std::move(programs), std::move(plan), context,
        CudaExecutorOptions{
            .poison_step_arena = true, .rendezvous = &meeting, .timeout_ns = 60'000'000'000});
  }

  void write(const char* buffer, const std::vector<std::byte>& bytes) {
    executor->write(buffer, 0, bytes);
  }
  std::vector<double> read(const char* buffer, DType dtype, int64_t elems) {
    std::vector<std::byte> bytes(static_cast<size_t>(elems) * dtype_bytes(dtype));
    executor->read(buffer, 0, bytes);
    std::vector<double> values;
    for (size_t i = 0; i < static_cast<size_t>(elems); ++i) {
      values.push_back(load_as_double(dtype, bytes.data() + i * dtype_bytes(dtype)));
    }
    return values;
  }
};

std::vector<std::byte> poison(int64_t elems) {
  return std::vector<std::byte>(static_cast<size_t>(elems) * sizeof(float), std::byte{0xFF});
}

/// What comes back to a rank: its rows, and NaN for those that did not fit their block.
std::vector<double> expected_back(const BlocksCase& c, const std::vector<double>& x, size_t rank) {
  std::vector<double> back(x);
  size_t row = 0;
  for (int64_t e = 0, in_pair = 0; e < c.experts.experts(); ++e) {
    in_pair = e % kLocalExperts == 0 ? 0 : in_pair;
    for (int64_t i = 0; i < c.experts.counts[rank][static_cast<size_t>(e)]; ++i, ++in_pair, ++row) {
      if (in_pair >= kBlockRows) {
        std::fill_n(back.begin() + static_cast<ptrdiff_t>(row) * kWidth, kWidth, std::nan(""));
      }
    }
  }
  return back;
}

void replay_with(RankOnDevice& on_device, const BlocksCase& c, size_t rank) {
  const Exchanged expected = exchange_by_blocks(c, /*dispatches=*/true, /*has_weights=*/true,
                                                [](KernelCase& kernel) { kernel.run(); });
  const KernelCase& own = expected.packed[rank];
  const KernelCase& there = expected.unpacked[rank];
  on_device.write("x", own.bytes(0));
  on_device.write("weights", own.bytes(1));
  on_device.write("offsets_of_all", own.bytes(2));
  on_device.write("y", poison(c.room() * kWidth));
  on_device.write("y_weights", poison(c.room()));
  on_device.write("back", poison(kRows * kWidth));
  on_device.executor->run(0);
  expect_close(on_device.read("y", DType::kF32, c.room() * kWidth), there.values(2), {}, "y");
  expect_close(on_device.read("y_weights", DType::kF32, c.room()), there.values(3), {}, "weights");
  expect_close(on_device.read("offsets", DType::kI32, kLocalExperts + 1), there.values(4), {},
               "offsets");
  expect_close(on_device.read("back", DType::kF32, kRows * kWidth),
               expected_back(c, own.values(0), rank), {}, "back");
}

TEST(RowBlocksOnGpus, BringEachRowThereAndBackInEachReplayOfAGraph) {
  if (const std::string why = why_not_here(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  int num_gpus = 0;
  BRAID_CUDA_CHECK(cudaGetDeviceCount(&num_gpus));
  for (int num_ranks = 2; num_ranks <= std::min(num_gpus, kMostRanks); ++num_ranks) {
    const auto meeting = make_in_process_rendezvous(num_ranks, 60'000'000'000);
    run_side_by_side(static_cast<size_t>(num_ranks), [&](size_t rank) {
      RankOnDevice on_device(static_cast<int>(rank), num_ranks, *meeting[rank]);
      for (int replay = 0; replay < kReplays; ++replay) {
        SCOPED_TRACE(fmt::format("rank {} of {}, replay {}", rank, num_ranks, replay));
        replay_with(on_device, case_of(num_ranks, replay), rank);
      }
    });
  }
}

}  // namespace
}  // namespace braid
