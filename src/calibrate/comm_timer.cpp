#include "calibrate/comm_timer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "base/errors.h"
#include "calibrate/task_timer.h"
#include "comm/transport.h"

namespace braid {
namespace {

/// The op that times a kind.
constexpr std::array<std::pair<CommKind, CommOp>, kNumCommKinds> kTimedOps = {
    {{CommKind::kAllReduce, CommOp::kAllReduce},
     {CommKind::kAllGather, CommOp::kAllGather},
     {CommKind::kReduceScatter, CommOp::kReduceScatter},
     {CommKind::kAllToAll, CommOp::kAllToAll},
     {CommKind::kBroadcast, CommOp::kBroadcast},
     {CommKind::kReduce, CommOp::kReduce},
     {CommKind::kSendRecv, CommOp::kRingShift}}};

constexpr int64_t kSampleNs = 3'000'000;
constexpr int64_t kMaxCalls = 200;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// One rank's end of the calls of a point, with its own memory.
class TimedRank {
 public:
  TimedRank(Transport& transport, const Group& group, CommOp op, int64_t num_bytes)
      : transport_(transport) {
    const auto n = static_cast<int64_t>(group.ranks.size());
    const int64_t block = std::max<int64_t>(1, num_bytes / 4 / n);
    const int64_t send = op == CommOp::kAllGather ? block : n * block;
    const int64_t recv = op == CommOp::kReduceScatter ? block : n * block;
    x_.assign(static_cast<size_t>(send), 1.0f);
    y_.assign(static_cast<size_t>(recv), 0.0f);
    call_ = {.op = op,
             .group = &group,
             .send = std::as_bytes(std::span(x_)).data(),
             .recv = std::as_writable_bytes(std::span(y_)).data(),
             .send_elems = send,
             .recv_elems = recv,
             .dtype = DType::kF32,
             .shift = 1,
             .what = "calibrate"};
    transport_.prepare(call_);
  }

  void run(int64_t num_calls) {
    for (int64_t i = 0; i < num_calls; ++i) {
      transport_.run(call_);
    }
  }

 private:
  Transport& transport_;
  std::vector<float> x_;
  std::vector<float> y_;
  CommCall call_;
};

/// All ranks of a machine, in groups of one size.
class TimedGroups {
 public:
  TimedGroups(int num_ranks, int group_size)
      : transports_(make_in_process_transports({.num_ranks = num_ranks})) {
    for (int first = 0; first < num_ranks; first += group_size) {
      Group& group = groups_.emplace_back(
          Group{.name = fmt::format("g{}", first), .kind = GroupKind::kWorld, .ranks = {}});
      for (int member = 0; member < group_size; ++member) {
        group.ranks.push_back(first + member);
      }
    }
  }

  Timing time(CommOp op, int64_t num_bytes, int num_samples) {
    std::vector<std::unique_ptr<TimedRank>> ranks;
    for (const Group& group : groups_) {
      for (const int rank : group.ranks) {
        ranks.push_back(std::make_unique<TimedRank>(*transports_[static_cast<size_t>(rank)], group,
                                                    op, num_bytes));
      }
    }
    run(ranks, 1);
    const int64_t once_ns = std::max<int64_t>(1, run(ranks, 2) / 2);
    const int64_t num_calls = std::clamp<int64_t>(kSampleNs / once_ns, 1, kMaxCalls);
    std::vector<double> samples_ns;
    for (int i = 0; i < num_samples; ++i) {
      samples_ns.push_back(static_cast<double>(run(ranks, num_calls)) /
                           static_cast<double>(num_calls));
    }
    return summarize(std::move(samples_ns));
  }

 private:
  /// Nanoseconds of `num_calls` calls of all ranks, from when all ranks have arrived.
  static int64_t run(const std::vector<std::unique_ptr<TimedRank>>& ranks, int64_t num_calls) {
    std::vector<int64_t> elapsed_ns(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] {
        ranks[i]->run(1);  // synchronizes the ranks
        const int64_t begin_ns = now_ns();
        ranks[i]->run(num_calls);
        elapsed_ns[i] = now_ns() - begin_ns;
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return *std::max_element(elapsed_ns.begin(), elapsed_ns.end());
  }

  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<Group> groups_;
};

}  // namespace

std::vector<CommPoint> time_in_process_communication(int num_ranks,
                                                     std::span<const int64_t> sizes_bytes,
                                                     int num_samples) {
  std::vector<CommPoint> points;
  for (int size = 2; size <= num_ranks; ++size) {
    if (num_ranks % size != 0) {
      continue;
    }
    TimedGroups groups(num_ranks, size);
    for (const auto& [kind, op] : kTimedOps) {
      for (const int64_t bytes : sizes_bytes) {
        points.push_back({.spec = {.kind = kind,
                                   .algorithm = CommAlgorithm::kRing,
                                   .placement = {size, 1, size},
                                   .bytes = bytes},
                          .timing = groups.time(op, bytes, num_samples)});
      }
    }
  }
  return points;
}

}  // namespace braid
