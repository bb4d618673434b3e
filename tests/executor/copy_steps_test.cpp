#include "backends/copy_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/expect_error.h"
#include "ir/text.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

/// Ranks with memory and flags, whose calls run step by step in a random order of ranks. Each rank
/// has streams of calls; every run of a call begins with fresh random data, and its result is
/// looked at some time after its end, before the rank begins with it again.
class ModelRun {
 public:
  struct Call {
    CommOp op = CommOp::kAllGather;
    std::vector<int> ranks;
    int64_t block = 1;
    int64_t shift = 0;
  };

  ModelRun(int num_replays, unsigned seed) : num_replays_(num_replays), random_(seed) {}

  void add(const Call& call, int stream) { calls_.push_back({call, stream, {}}); }

  void run() {
    prepare();
    while (!is_over()) {
      ASSERT_TRUE(advance()) << "nobody gets any further";
      if (::testing::Test::HasFatalFailure()) {
        return;
      }
    }
    for (const auto& entry : calls_) {
      for (const End& end : entry.ends) {
        EXPECT_EQ(end.num_runs, num_replays_);
        EXPECT_THAT(end.flags, ::testing::Each(0)) << "flags must be as at the beginning";
      }
    }
  }

 private:
  enum class State { kIdle, kRunning, kRead };
  struct End {  // one rank's of a call
    int rank = 0;
    CopyShape shape;
    std::vector<CopyStep> steps;
    std::vector<int> x;
    std::vector<int> y;
    std::vector<int> flags;
    State state = State::kIdle;
    size_t next = 0;
    int num_runs = 0;
    int reading = 0;  // turns until the result has been read
  };
  struct Entry {
    Call call;
    int stream = 0;
    std::vector<End> ends;
  };
  struct Lane {  // of a rank: its calls in order
    int rank = 0;
    std::vector<std::pair<size_t, size_t>> ends;  // call, place
    size_t next = 0;
    int replay = 0;
  };

  bool is_message(const Call& call) const { return call.op == CommOp::kSend; }

  /// Rows of experts, too, are here one block for each member.
  static bool exchanges(CommOp op) {
    return op == CommOp::kAllToAll || op == CommOp::kDispatchRows || op == CommOp::kCombineRows;
  }

  void prepare() {
    std::map<std::pair<int, int>, Lane> lanes;
    for (size_t i = 0; i < calls_.size(); ++i) {
      Entry& entry = calls_[i];
      const auto n = static_cast<int>(entry.call.ranks.size());
      for (int place = 0; place < n; ++place) {
        End end;
        end.rank = entry.call.ranks[static_cast<size_t>(place)];
        end.shape = {.op = is_message(entry.call) && place == 1 ? CommOp::kRecv : entry.call.op,
                     .place = place,
                     .size = n,
                     .block_bytes = entry.call.block,
                     .shift = entry.call.shift};
        end.steps = copy_steps(end.shape);
        const bool many = exchanges(entry.call.op);
        end.x.resize(static_cast<size_t>(entry.call.block * (many ? n : 1)));
        end.y.resize(static_cast<size_t>(entry.call.block *
                                         (many || entry.call.op == CommOp::kAllGather ? n : 1)));
        end.flags.resize(static_cast<size_t>(num_copy_flags(n)));
        Lane& lane = lanes[{end.rank, entry.stream}];
        lane.rank = end.rank;
        lane.ends.emplace_back(i, static_cast<size_t>(place));
        entry.ends.push_back(std::move(end));
      }
    }
    for (auto& [key, lane] : lanes) {
      lanes_.push_back(std::move(lane));
    }
  }

  bool is_over() const {
    return std::ranges::all_of(lanes_,
                               [&](const Lane& lane) { return lane.replay == num_replays_; });
  }

  /// All streams of a rank end a replay before the next one begins, as graphs do.
  bool may_begin(const Lane& lane) const {
    return lane.next > 0 || std::ranges::all_of(lanes_, [&](const Lane& other) {
             return other.rank != lane.rank || other.replay >= lane.replay;
           });
  }

  /// One step of some lane; false if none can.
  bool advance() {
    const size_t first = random_() % lanes_.size();
    for (size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[(first + i) % lanes_.size()];
      if (lane.replay < num_replays_ && may_begin(lane) && step(lane)) {
        return true;
      }
    }
    return false;
  }

  bool step(Lane& lane) {
    const auto [call, place] = lane.ends[lane.next];
    Entry& entry = calls_[call];
    End& end = entry.ends[place];
    if (end.state == State::kIdle) {
      begin(end);
      return true;
    }
    if (end.state == State::kRunning && end.next < end.steps.size()) {
      return run_step(entry, end, end.steps[end.next]) && (++end.next, true);
    }
    if (end.state == State::kRunning) {
      end.state = State::kRead;
      end.reading = static_cast<int>(random_() % 8);
      return true;
    }
    if (end.reading-- > 0) {
      return true;
    }
    look_at(entry, end);
    end.state = State::kIdle;
    ++end.num_runs;
    if (++lane.next == lane.ends.size()) {
      lane.next = 0;
      ++lane.replay;
    }
    return true;
  }

  void begin(End& end) {
    end.state = State::kRunning;
    end.next = 0;
    std::mt19937 data(static_cast<unsigned>(end.num_runs * 64 + end.rank));
    for (int& value : end.x) {
      value = static_cast<int>(data() % 100'000);
    }
    std::ranges::fill(end.y, -1);
  }

  bool run_step(Entry& entry, End& end, const CopyStep& step) {
    End& peer = entry.ends[static_cast<size_t>(step.peer)];
    switch (step.action) {
      case CopyAction::kSignal: {
        int& flag = peer.flags[static_cast<size_t>(step.flag)];
        EXPECT_EQ(flag, 0) << "a flag is set that nobody has taken";
        flag = 1;
        return true;
      }
      case CopyAction::kAwait: {
        int& flag = end.flags[static_cast<size_t>(step.flag)];
        return flag == 1 ? (flag = 0, true) : false;
      }
      case CopyAction::kPush:
        EXPECT_EQ(peer.state, State::kRunning) << "a push into memory that is in use";
        EXPECT_EQ(peer.num_runs, end.num_runs);
        copy(end, peer, step);
        return true;
      case CopyAction::kKeep:
        copy(end, end, step);
        return true;
      case CopyAction::kFetchRows:
        fetch_rows(entry, end);
        return true;
    }
    return false;
  }

  /// Each rank reads its rows from the others' x.
  static void fetch_rows(const Entry& entry, End& end) {
    const int64_t block = entry.call.block;
    for (const End& other : entry.ends) {
      EXPECT_EQ(other.state, State::kRunning) << "memory that is in use";
      EXPECT_EQ(other.num_runs, end.num_runs);
      std::copy_n(other.x.begin() + end.shape.place * block, block,
                  end.y.begin() + other.shape.place * block);
    }
  }

  static void copy(const End& from, End& to, const CopyStep& step) {
    std::copy_n(from.x.begin() + step.from_bytes, step.num_bytes, to.y.begin() + step.to_bytes);
  }

  int sent(const Entry& entry, const End& end, size_t from, int64_t element) const {
    std::mt19937 data(static_cast<unsigned>(end.num_runs * 64 + entry.ends[from].rank));
    data.discard(static_cast<unsigned long long>(element));
    return static_cast<int>(data() % 100'000);
  }

  void look_at(const Entry& entry, const End& end) {
    const auto n = static_cast<int64_t>(entry.ends.size());
    const int64_t block = entry.call.block;
    for (int64_t i = 0; i < static_cast<int64_t>(end.y.size()); ++i) {
      const int64_t from = i / block;
      const int64_t rest = i % block;
      switch (entry.call.op) {
        case CommOp::kAllGather:
          ASSERT_EQ(end.y[static_cast<size_t>(i)],
                    sent(entry, end, static_cast<size_t>(from), rest));
          break;
        case CommOp::kAllToAll:
        case CommOp::kDispatchRows:
        case CommOp::kCombineRows:
          ASSERT_EQ(end.y[static_cast<size_t>(i)],
                    sent(entry, end, static_cast<size_t>(from), end.shape.place * block + rest));
          break;
        case CommOp::kRingShift:
          ASSERT_EQ(
              end.y[static_cast<size_t>(i)],
              sent(entry, end,
                   static_cast<size_t>(((end.shape.place - entry.call.shift) % n + n) % n), rest));
          break;
        default:
          ASSERT_TRUE(end.shape.place == 0 ||
                      end.y[static_cast<size_t>(i)] == sent(entry, end, 0, rest));
      }
    }
  }

  int num_replays_;
  std::mt19937 random_;
  std::vector<Entry> calls_;
  std::vector<Lane> lanes_;
};

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks;
  for (int rank = 0; rank < count; ++rank) {
    ranks.push_back(rank);
  }
  return ranks;
}

TEST(CopySteps, NothingIsOverwrittenOrLostWhateverTheSpeedOfRanks) {
  for (int num_ranks = 2; num_ranks <= (kSanitized ? 3 : 8); ++num_ranks) {
    for (unsigned seed = 0; seed < (kSanitized ? 4u : 40u); ++seed) {
      SCOPED_TRACE(::testing::Message() << num_ranks << " ranks, seed " << seed);
      ModelRun run(6, seed);
      const std::vector<int> all = first_ranks(num_ranks);
      run.add({.op = CommOp::kAllGather, .ranks = all, .block = 3}, 0);
      run.add({.op = CommOp::kAllToAll, .ranks = all, .block = 2}, 0);
      run.add({.op = CommOp::kRingShift, .ranks = all, .block = 5, .shift = -1}, 1);
      run.add({.op = CommOp::kRingShift, .ranks = all, .block = 5, .shift = num_ranks + 1}, 1);
      run.add({.op = CommOp::kAllGather, .ranks = {num_ranks - 1, 0}, .block = 1}, 2);
      run.add({.op = CommOp::kDispatchRows, .ranks = all, .block = 2}, 1);
      run.add({.op = CommOp::kCombineRows, .ranks = all, .block = 2}, 1);
      run.add({.op = CommOp::kSend, .ranks = {0, num_ranks - 1}, .block = 4}, 3);
      run.add({.op = CommOp::kSend, .ranks = {num_ranks - 1, 0}, .block = 4}, 3);
      run.run();
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST(CopySteps, AreAFewPerPeer) {
  using enum CopyAction;
  std::vector<CopyAction> actions;
  for (const CopyStep& step :
       copy_steps({.op = CommOp::kAllGather, .place = 1, .size = 2, .block_bytes = 8})) {
    actions.push_back(step.action);
  }
  EXPECT_THAT(actions, ElementsAre(kSignal, kKeep, kAwait, kPush, kSignal, kAwait));
  EXPECT_TRUE(copy_steps({.op = CommOp::kAllToAll, .size = 4, .block_bytes = 0}).empty());
  EXPECT_EQ(copy_steps({.op = CommOp::kRingShift, .size = 4, .block_bytes = 8, .shift = 8}).size(),
            1u);
  EXPECT_EQ(
      message_of<InternalError>([] { copy_steps({.op = CommOp::kAllReduce, .block_bytes = 8}); }),
      "copies do not suffice for all_reduce");
}

const std::string kProgram =
    "stream compute kind=compute priority=0\n"
    "group data kind=data ranks=4,7\n"
    "group stages kind=pipeline ranks=4,5,7\n"
    "buffer x bf16 [6] param persistent device\n"
    "buffer y bf16 [12] gathered persistent device\n";

TEST(CopyCalls, AreNamedAlikeByTheirRanks) {
  const auto program = [](int rank, const std::string& tasks) {
    return parse_program("program step rank=" + std::to_string(rank) + " ranks=8 events=0\n" +
                         kProgram + tasks);
  };
  const std::string gather = "all_gather(x -> y) {group=0, engine=\"copy\"} compute comm\n";
  const auto seven = find_copy_calls(std::vector{
      program(7, "all_gather(x -> y) {group=0} compute comm\n" + gather + gather +
                     "send(x) {group=1, peer=0, channel=3, engine=\"copy\"} compute comm\n")});
  const auto four = find_copy_calls(std::vector{
      program(4, "recv(-> x) {group=1, peer=2, channel=3, engine=\"copy\"} compute comm\n" +
                     gather + gather)});
  ASSERT_EQ(seven.size(), 3u);
  ASSERT_EQ(four.size(), 3u);
  EXPECT_EQ(seven[1].name, "program 0, data calls of ranks 4, 7, number 1");
  EXPECT_EQ(seven[1].name, four[2].name);
  EXPECT_EQ(seven[2].name, four[0].name);
  EXPECT_EQ(seven[1].task, TaskId(2));
  EXPECT_EQ(seven[2].first_flag, 8);
  EXPECT_THAT(seven[2].ranks, ElementsAre(7, 4));
  EXPECT_EQ(seven[2].shape.place, 0);
  EXPECT_EQ(four[0].shape.place, 1);
  EXPECT_EQ(four[0].shape.block_bytes, 12);
  EXPECT_EQ(seven[0].reached_operands, std::vector<size_t>{1});
  EXPECT_TRUE(seven[2].reached_operands.empty());
  EXPECT_TRUE(
      find_copy_calls(std::vector{program(4, "all_gather(x -> y) {group=0} compute comm\n")})
          .empty());
}

TEST(CopyCalls, OfRowsReachRowsAndWeights) {
  const Program program = parse_program(
      "program step rank=1 ranks=2 events=0\n"
      "stream compute kind=compute priority=0\n"
      "group experts kind=expert ranks=0,1\n"
      "buffer x bf16 [6,4] activation persistent device\n"
      "buffer weights f32 [6] activation persistent device\n"
      "buffer offsets_of_all i32 [6] activation persistent device\n"
      "buffer y bf16 [9,4] activation persistent device\n"
      "buffer y_weights f32 [9] activation persistent device\n"
      "buffer offsets i32 [2] activation persistent device\n"
      "buffer back bf16 [6,4] activation persistent device\n"
      "dispatch_rows(x, weights, offsets_of_all -> y, y_weights, offsets) {group=0, experts=2, "
      "copies=1, has_weights=true, drops=false} compute comm\n"
      "combine_rows(y, offsets_of_all -> back) {group=0, experts=2, copies=1, has_weights=false, "
      "drops=false} compute comm\n");
  const auto calls = find_copy_calls({&program, 1});
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_THAT(calls[0].reached_operands, ElementsAre(0, 1));
  EXPECT_THAT(calls[1].reached_operands, ElementsAre(0));
  EXPECT_EQ(calls[1].name, "program 0, experts calls of ranks 0, 1, number 1");
  std::vector<CopyAction> actions;
  for (const CopyStep& step : copy_steps(calls[0].shape)) {
    actions.push_back(step.action);
  }
  using enum CopyAction;
  EXPECT_THAT(actions, ElementsAre(kSignal, kAwait, kFetchRows, kSignal, kAwait));
}

}  // namespace
}  // namespace braid
