#include "parallel/paired_jobs.h"

#include <utility>

namespace braid {
namespace {

/// How many forwards a rank runs ahead of the backward in every pair. With this distance, what a
/// job of a pair reads was produced by an earlier pair of another rank.
int64_t forwards_ahead(const ScheduleOptions& options, int rank) {
  const int64_t group_size = options.group_size == 0 ? options.num_ranks : options.group_size;
  return 2 * (int64_t{options.num_ranks} - rank - 1) + (options.virtual_stages - 1) * group_size +
         1;
}

class PairFinder {
 public:
  PairFinder(const ScheduleOptions& options, int rank)
      : options_(options), ahead_(forwards_ahead(options, rank)) {}

  /// Whether the job and the one after it are a pair. Must be called for all jobs in order.
  bool is_pair(const Job& a, const Job& b) {
    const int64_t first = num_forwards_;
    num_forwards_ += a.kind == JobKind::kForward ? 1 : 0;
    const int64_t second = num_backwards_;
    num_backwards_ += a.kind == JobKind::kBackward || a.kind == JobKind::kDgrad ? 1 : 0;
    if (options_.pairs == JobPairs::kHalves) {
      return a.kind == b.kind && a.microbatch % 2 == 0 && b.microbatch == a.microbatch + 1;
    }
    if (a.kind != JobKind::kForward) {
      return false;
    }
    if (options_.kind == ScheduleKind::kDualpipeV) {
      return b.kind == JobKind::kBackward && b.microbatch != a.microbatch;
    }
    const bool is_backward = b.kind == JobKind::kBackward || b.kind == JobKind::kDgrad;
    return is_backward && first - second == ahead_;
  }

 private:
  const ScheduleOptions& options_;
  int64_t ahead_;
  int64_t num_forwards_ = 0;
  int64_t num_backwards_ = 0;
};

}  // namespace

std::vector<JobPair> paired_jobs(const ScheduleOptions& options, int rank) {
  std::vector<JobPair> pairs;
  if (options.pairs == JobPairs::kNone) {
    return pairs;
  }
  const Schedule schedule = make_schedule(options, rank);
  PairFinder finder(options, rank);
  for (size_t i = 0; i + 1 < schedule.size(); ++i) {
    if (finder.is_pair(schedule[i], schedule[i + 1])) {
      pairs.push_back({schedule[i], schedule[i + 1]});
    }
  }
  return pairs;
}

}  // namespace braid
