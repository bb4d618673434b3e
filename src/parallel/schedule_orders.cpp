#include "parallel/schedule_orders.h"

#include <algorithm>
#include <array>
#include <deque>

#include "base/errors.h"

namespace braid {
namespace {

/// Appends jobs. Each virtual stage gets its microbatches in order.
class OrderBuilder {
 public:
  explicit OrderBuilder(const ScheduleOptions& options)
      : counts_(static_cast<size_t>(options.virtual_stages)) {
    const auto stages = static_cast<size_t>(options.virtual_stages);
    order_.reserve(static_cast<size_t>(options.num_microbatches) * stages * 2);
  }

  int32_t num_forwards(int virtual_stage) const { return count(virtual_stage).forwards; }

  void forward(int virtual_stage) {
    add(JobKind::kForward, virtual_stage, count(virtual_stage).forwards++);
  }
  void backward(int virtual_stage) {
    add(JobKind::kBackward, virtual_stage, count(virtual_stage).backwards++);
  }
  void dgrad(int virtual_stage) {
    pending_wgrads_.push_back(virtual_stage);
    add(JobKind::kDgrad, virtual_stage, count(virtual_stage).backwards++);
  }
  /// Appends the wgrad of the oldest dgrad without one.
  void wgrad() {
    const int virtual_stage = pending_wgrads_.front();
    pending_wgrads_.pop_front();
    add(JobKind::kWgrad, virtual_stage, wgrad_microbatch(virtual_stage));
  }

  Schedule take() { return std::move(order_); }

 private:
  struct Counts {
    int32_t forwards = 0;
    int32_t backwards = 0;
  };

  Counts& count(int virtual_stage) { return counts_[static_cast<size_t>(virtual_stage)]; }
  const Counts& count(int virtual_stage) const {
    return counts_[static_cast<size_t>(virtual_stage)];
  }

  /// The pending wgrads belong to the stage's last dgrads. This one, already removed from the
  /// queue, is the oldest.
  int32_t wgrad_microbatch(int virtual_stage) const {
    const auto pending = std::ranges::count(pending_wgrads_, virtual_stage);
    return count(virtual_stage).backwards - 1 - static_cast<int32_t>(pending);
  }

  void add(JobKind kind, int virtual_stage, int32_t microbatch) {
    order_.push_back({.kind = kind, .microbatch = microbatch, .virtual_stage = virtual_stage});
  }

  Schedule order_;
  std::vector<Counts> counts_;
  std::deque<int> pending_wgrads_;  // virtual stages of dgrads without a wgrad
};

template <class Call>
void repeat(int64_t times, Call&& call) {
  for (int64_t i = 0; i < times; ++i) {
    call();
  }
}

/// Entry k has the microbatch and virtual stage of the k-th forward of every rank of an interleaved
/// pipeline. The k-th backward has the same, with virtual stages counted from the end.
Schedule interleaved_table(const ScheduleOptions& options) {
  const int64_t group_size = options.group_size == 0 ? options.num_ranks : options.group_size;
  Schedule table;
  for (int64_t begin = 0; begin < options.num_microbatches; begin += group_size) {
    const int64_t end = std::min(begin + group_size, options.num_microbatches);
    for (int virtual_stage = 0; virtual_stage < options.virtual_stages; ++virtual_stage) {
      for (int64_t microbatch = begin; microbatch < end; ++microbatch) {
        table.push_back(
            {.microbatch = static_cast<int32_t>(microbatch), .virtual_stage = virtual_stage});
      }
    }
  }
  return table;
}

Schedule halves_order(const ScheduleOptions& options) {
  OrderBuilder order(options);
  repeat(options.num_microbatches / 2, [&] {
    repeat(2, [&] { order.forward(0); });
    repeat(2, [&] { order.backward(0); });
  });
  return order.take();
}

}  // namespace

Schedule gpipe_order(const ScheduleOptions& options) {
  OrderBuilder order(options);
  repeat(options.num_microbatches, [&] { order.forward(0); });
  repeat(options.num_microbatches, [&] { order.backward(0); });
  return order.take();
}

Schedule one_forward_one_backward_order(const ScheduleOptions& options, int rank) {
  if (options.pairs == JobPairs::kHalves) {
    return halves_order(options);
  }
  const int64_t after = options.num_ranks - rank - 1;  // ranks after this one
  const int64_t wanted = options.pairs == JobPairs::kForwardBackward ? 2 * after + 1 : after;
  const int64_t warmup = std::min(wanted, options.num_microbatches);
  OrderBuilder order(options);
  repeat(warmup, [&] { order.forward(0); });
  repeat(options.num_microbatches - warmup, [&] {
    order.forward(0);
    order.backward(0);
  });
  repeat(warmup, [&] { order.backward(0); });
  return order.take();
}

Schedule interleaved_order(const ScheduleOptions& options, int rank) {
  const Schedule table = interleaved_table(options);
  const int64_t group_size = options.group_size == 0 ? options.num_ranks : options.group_size;
  const int64_t wanted = 2 * (int64_t{options.num_ranks} - rank - 1) +
                         (options.virtual_stages - 1) * group_size +
                         (options.pairs == JobPairs::kForwardBackward ? 1 : 0);
  const size_t warmup = std::min<size_t>(static_cast<size_t>(wanted), table.size());
  Schedule order(table.begin(), table.begin() + static_cast<int64_t>(warmup));
  order.reserve(2 * table.size());
  for (size_t step = 0; step < table.size(); ++step) {
    if (warmup + step < table.size()) {
      order.push_back(table[warmup + step]);
    }
    Job backward = table[step];
    backward.kind = JobKind::kBackward;
    backward.virtual_stage = options.virtual_stages - 1 - backward.virtual_stage;
    order.push_back(backward);
  }
  return order;
}

Schedule zb_v_order(const ScheduleOptions& options, int rank) {
  const int64_t ranks = options.num_ranks;
  const int64_t microbatches = std::max<int64_t>(options.num_microbatches, 2 * ranks - 1);
  OrderBuilder order(options);
  // Warmup: forwards go down the V and back up it until the first dgrad is ready. Then dgrads are
  // those of the way up, until the first dgrad has come down again to this rank.
  repeat(2 * (ranks - rank) - 1, [&] { order.forward(0); });
  repeat(rank, [&] {
    order.forward(1);
    order.forward(0);
  });
  repeat(ranks - rank, [&] {
    order.forward(1);
    order.dgrad(1);
  });
  // Steady: each microbatch runs once per stage.
  while (order.num_forwards(1) < microbatches) {
    if (order.num_forwards(0) < microbatches) {
      order.forward(0);
    }
    order.dgrad(0);
    order.forward(1);
    order.dgrad(1);
  }
  // Cooldown: the remaining dgrads. fill_with_wgrads puts wgrads between them.
  repeat(rank, [&] {
    order.dgrad(0);
    order.dgrad(1);
  });
  repeat(ranks - rank, [&] { order.dgrad(0); });

  Schedule jobs = order.take();
  std::erase_if(jobs, [&](const Job& job) { return job.microbatch >= options.num_microbatches; });
  return jobs;
}

Schedule dualpipe_v_order(const ScheduleOptions& options, int rank) {
  const int64_t after = options.num_ranks - rank - 1;  // ranks after this one
  const int64_t up_to = rank + 1;                      // ranks up to this one
  OrderBuilder order(options);
  repeat(2 * after, [&] { order.forward(0); });
  repeat(up_to, [&] {
    order.forward(0);
    order.forward(1);
  });
  repeat(after, [&] {
    order.dgrad(1);
    order.wgrad();
    order.forward(1);
  });
  // Main part: pairs of a forward in one direction and a backward in the other.
  repeat(options.num_microbatches - 2 * int64_t{options.num_ranks} + up_to, [&] {
    order.forward(0);
    order.backward(1);
    order.forward(1);
    order.backward(0);
  });
  repeat(after, [&] {
    order.backward(1);
    order.forward(1);
    order.backward(0);
  });
  // In the second half of the cooldown, run first the dgrads that other ranks wait for and postpone
  // wgrads.
  for (int64_t i = 0; i < 2 * up_to; ++i) {
    const int virtual_stage = i % 2 == 0 ? 1 : 0;
    if (i < up_to) {
      order.backward(virtual_stage);
    } else {
      order.dgrad(virtual_stage);
    }
  }
  repeat(after, [&] {
    order.wgrad();
    order.dgrad(0);
  });
  repeat(up_to, [&] { order.wgrad(); });
  return order.take();
}

}  // namespace braid
