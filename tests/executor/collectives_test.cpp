// Programs of several ranks with every op that communicates: each rank gets the result that the
// header of the op promises, whatever the delays.
#include "ops/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "backends/run_ranks.h"
#include "base/expect_error.h"
#include "ops/attributes.h"
#include "passes/streams/insert_events.h"
#include "support/cpu_ranks.h"
#include "support/executor_helpers.h"

namespace braid {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kBlock = 6;

/// Elements rank + 0.5, scaled so that blocks differ: what rank r holds in block b at the start.
float start_value(int rank, int64_t block) {
  return static_cast<float>(100 * rank) + static_cast<float>(block) + 0.5f;
}

/// Builds the program of one rank. Buffers are of whole blocks; every op runs on its own stream.
class CommProgram {
 public:
  CommProgram(int rank, int num_ranks) : num_ranks_(num_ranks), builder_("step", rank, num_ranks) {
    Group all{"all", GroupKind::kTensor, {}};
    for (int i = 0; i < num_ranks; ++i) {
      all.ranks.push_back(i);
    }
    builder_.add_group(all);
  }

  BufferId buffer(std::string name, int64_t num_blocks, DType dtype = DType::kF32) {
    return builder_.add_buffer({std::move(name),
                                dtype,
                                {num_blocks * kBlock},
                                BufferRole::kActivation,
                                Lifetime::kPersistent});
  }

  /// x -> y on a stream of its own.
  template <class Attributes>
  void add(const std::string& op, const Attributes& attributes,
           std::vector<std::pair<BufferId, Access>> operands) {
    OpSpec spec{op, to_attributes(attributes), {}};
    std::vector<BufferRange> ranges;
    for (const auto& [id, access] : operands) {
      ranges.push_back(builder_.whole(id));
      spec.operands.push_back(
          {builder_.program().buffers[id.index()].dtype, access, {ranges.back().end}});
    }
    check_spec(spec);
    const StreamId stream = builder_.add_stream(
        {"s" + std::to_string(builder_.program().streams.size()), StreamKind::kComm, 0});
    builder_.add_task(spec, ranges, stream, {.phase = Phase::kComm, .site = builder_.site(op)});
  }

  int num_ranks() const { return num_ranks_; }
  Program finish() { return insert_events(builder_.take()).program; }

 private:
  int num_ranks_;
  ProgramBuilder builder_;
};

/// Every op from "x" (one block) or "xs" (a block per rank) to a buffer that is called after it.
/// The streams are not ordered, as each op has buffers of its own.
Program every_op(int rank, int num_ranks) {
  CommProgram program(rank, num_ranks);
  const BufferId x = program.buffer("x", 1);
  const BufferId xs = program.buffer("xs", num_ranks);
  const CollectiveAttributes all;
  const auto to = [&](const char* name, int64_t num_blocks) {
    return std::pair{program.buffer(name, num_blocks), Access::kWrite};
  };
  const std::pair from_x{x, Access::kRead};
  const std::pair from_xs{xs, Access::kRead};
  program.add("all_reduce", all, {from_x, to("all_reduce", 1)});
  program.add("all_reduce", all, {{program.buffer("in_place", 1), Access::kReadWrite}});
  program.add("all_gather", all, {from_x, to("all_gather", num_ranks)});
  program.add("reduce_scatter", all, {from_xs, to("reduce_scatter", 1)});
  program.add("all_to_all", all, {from_xs, to("all_to_all", num_ranks)});
  program.add("broadcast", RootAttributes{.root = 1 % num_ranks}, {from_x, to("broadcast", 1)});
  program.add("reduce", RootAttributes{.root = 1 % num_ranks}, {from_x, to("reduce", 1)});
  program.add("ring_shift", RingShiftAttributes{.shift = 1}, {from_x, to("ring_shift", 1)});
  program.add("identity", all, {from_x, to("identity", 1)});
  if (num_ranks > 1) {
    const int64_t n = num_ranks;
    program.add("send", MessageAttributes{.peer = (rank + 1) % n, .channel = 2}, {from_x});
    program.add("recv", MessageAttributes{.peer = (rank + n - 1) % n, .channel = 2},
                {to("recv", 1)});
  }
  return program.finish();
}

/// One collective after the other in one group would need one order on all ranks, so all of them
/// are on one stream here.
Program on_one_stream(Program program) {
  for (Task& task : program.tasks) {
    task.stream = StreamId(0);
  }
  return insert_events(std::move(program)).program;
}

std::vector<float> blocks(const std::vector<float>& values) {
  std::vector<float> all;
  for (const float value : values) {
    all.insert(all.end(), kBlock, value);
  }
  return all;
}

void set_inputs(CpuExecutor& executor, int rank, int num_ranks) {
  std::vector<float> starts;
  for (int block = 0; block < num_ranks; ++block) {
    starts.push_back(start_value(rank, block));
  }
  write_floats(executor, "x", blocks({start_value(rank, 0)}));
  write_floats(executor, "in_place", blocks({start_value(rank, 0)}));
  write_floats(executor, "xs", blocks(starts));
}

void expect_results(CpuExecutor& executor, int rank, int num_ranks) {
  const auto sum_of_block = [&](int64_t block) {
    float sum = 0;
    for (int i = 0; i < num_ranks; ++i) {
      sum += start_value(i, block);
    }
    return sum;
  };
  std::vector<float> gathered;
  std::vector<float> exchanged;
  for (int i = 0; i < num_ranks; ++i) {
    gathered.push_back(start_value(i, 0));
    exchanged.push_back(start_value(i, rank));
  }
  const int root = 1 % num_ranks;
  const int previous = (rank + num_ranks - 1) % num_ranks;
  const auto expect = [&](const char* buffer, const std::vector<float>& values) {
    const std::vector<float> expected = blocks(values);
    EXPECT_EQ(read_floats(executor, buffer, expected.size()), expected) << buffer;
  };
  expect("all_reduce", {sum_of_block(0)});
  expect("in_place", {sum_of_block(0)});
  expect("all_gather", gathered);
  expect("reduce_scatter", {sum_of_block(rank)});
  expect("all_to_all", exchanged);
  expect("broadcast", {start_value(root, 0)});
  expect("reduce", {rank == root ? sum_of_block(0) : 0.0f});
  expect("ring_shift", {start_value(previous, 0)});
  expect("identity", {start_value(rank, 0)});
  if (num_ranks > 1) {
    expect("recv", {start_value(previous, 0)});
  }
}

/// All collectives of the group on one stream; the messages, a copy and nothing else beside it.
Program collectives_and_messages(int rank, int num_ranks) {
  Program program = every_op(rank, num_ranks);
  for (Task& task : program.tasks) {
    const std::string& op = program.spec(task).op;
    if (op != "send" && op != "recv" && op != "identity") {
      task.stream = StreamId(0);
    }
  }
  clear_events(program);
  return insert_events(std::move(program)).program;
}

class CollectivesOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(CollectivesOnRanks, GiveWhatTheirOpsSay) {
  const int n = GetParam();
  CpuRanks ranks(n, [&](int rank) { return collectives_and_messages(rank, n); });
  for (int step = 0; step < 5; ++step) {
    for (int rank = 0; rank < n; ++rank) {
      set_inputs(ranks[static_cast<size_t>(rank)], rank, n);
    }
    ranks.run();
    for (int rank = 0; rank < n; ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      expect_results(ranks[static_cast<size_t>(rank)], rank, n);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesOnRanks, ::testing::Values(1, 2, 3, 5, 8));

TEST(Collectives, OfOneRankNeedNoOtherStream) {
  CpuRanks ranks(1, [&](int) { return on_one_stream(every_op(0, 1)); });
  set_inputs(ranks[0], 0, 1);
  ranks.run();
  expect_results(ranks[0], 0, 1);
}

TEST(Collectives, MoveBytesOfAnyDtype) {
  for (const DType dtype : {DType::kU8, DType::kBF16, DType::kF64}) {
    const auto build = [&](int rank) {
      CommProgram program(rank, 3);
      const BufferId x = program.buffer("x", 1, dtype);
      program.add("all_gather", CollectiveAttributes{},
                  {{x, Access::kRead}, {program.buffer("y", 3, dtype), Access::kWrite}});
      return program.finish();
    };
    CpuRanks ranks(3, build);
    std::vector<std::byte> expected;
    for (int rank = 0; rank < 3; ++rank) {
      const std::vector<std::byte> own(kBlock * dtype_bytes(dtype), std::byte(17 + rank));
      expected.insert(expected.end(), own.begin(), own.end());
      ranks[static_cast<size_t>(rank)].write("x", 0, own);
    }
    ranks.run();
    for (size_t rank = 0; rank < 3; ++rank) {
      std::vector<std::byte> y(expected.size());
      ranks[rank].read("y", 0, y);
      EXPECT_EQ(y, expected);
    }
  }
}

TEST(Collectives, AreInTimelinesWithBytesAndGroup) {
  CpuRanks ranks(2, [](int rank) { return collectives_and_messages(rank, 2); });
  ranks[1].set_tracing(true);
  ranks.run();
  const RankTimeline timeline = ranks[1].timeline();
  for (const TimelineTask& task : timeline.tasks) {
    const std::string& op = timeline.ops[task.op].name;
    const bool has_blocks = op == "all_gather" || op == "reduce_scatter" || op == "all_to_all";
    EXPECT_EQ(task.communication, op != "identity");
    EXPECT_EQ(task.bytes, op == "identity" ? 0 : has_blocks ? 8 * kBlock : 4 * kBlock) << op;
    if (task.communication) {
      EXPECT_EQ(task.group, GroupKind::kTensor);
    }
  }
}

TEST(Collectives, TakeTheTimeOfTheirLinks) {
  constexpr int64_t kLatencyNs = 3'000'000;
  CpuRanksOptions options;
  options.links[GroupKind::kTensor].latency_ns = kLatencyNs;
  CpuRanks ranks(
      2, [](int rank) { return collectives_and_messages(rank, 2); }, options);
  for (int rank = 0; rank < 2; ++rank) {
    ranks[static_cast<size_t>(rank)].set_tracing(true);
    set_inputs(ranks[static_cast<size_t>(rank)], rank, 2);
  }
  ranks.run();
  for (int rank = 0; rank < 2; ++rank) {
    expect_results(ranks[static_cast<size_t>(rank)], rank, 2);
    for (const TimelineTask& task : ranks[static_cast<size_t>(rank)].timeline().tasks) {
      if (task.communication) {
        EXPECT_GE(task.end_ns - task.start_ns, kLatencyNs);
      }
    }
  }
}

TEST(Collectives, ThatDoNotFitTheirGroupAreRefusedAtConstruction) {
  const auto build = [](int rank) {
    CommProgram program(rank, 2);
    program.add(
        "all_gather", CollectiveAttributes{},
        {{program.buffer("x", 1), Access::kRead}, {program.buffer("y", 3), Access::kWrite}});
    return program.finish();
  };
  EXPECT_THAT(message_of<InternalError>([&] { CpuRanks(2, build); }),
              HasSubstr("all_gather of 18 f32 (all_gather all_gather) in group all of 2 ranks: 6 "
                        "elements there and 18 elements back"));
  const auto to_itself = [](int rank) {
    CommProgram program(rank, 2);
    program.add("send", MessageAttributes{.peer = rank}, {{program.buffer("x", 1), Access::kRead}});
    return program.finish();
  };
  EXPECT_THAT(message_of<InternalError>([&] { CpuRanks(2, to_itself); }),
              HasSubstr("rank 0 cannot exchange messages with itself"));
}

}  // namespace
}  // namespace braid
