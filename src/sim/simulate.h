#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "parallel/alike_ranks.h"
#include "parallel/rank_calls.h"
#include "parallel/verify_ranks.h"
#include "sim/cost_model.h"
#include "sim/price_changes.h"
#include "trace/task_timeline.h"

/// Runs the programs of all ranks of a step in simulated time: one discrete-event run in which
/// ranks wait for each other and share links, copy engines and SMs. docs/simulator.md has the model
/// and the origin of its numbers. In short:
///
///  - tasks of a stream run in order; a task is ready when the previous one on its stream and the
///    tasks whose events it waits for have ended;
///  - a device runs one compute task at a time, one copy to the host and one from the host. Of the
///    ready tasks it takes one on the stream with the highest priority, and among these the first
///    stream. A running task is not interrupted;
///  - a communication begins when it is ready on all of its ranks, and ends on all at once;
///  - tasks that run at the same time slow each other as given by the cost model: SMs that send
///    slow compute, and communications that need the same link of a rank in the same direction
///    share it. Transfers over emulated links (CostModel::links) wait for each other instead, as in
///    LinkSchedule.
///
/// Rates change only when something begins or ends. A task has `ns` * kFullRate units of work; with
/// a rate of r / kFullRate it does r units in a nanosecond, and ends at the first whole nanosecond
/// at which all of its work is done. Everything that ends at a nanosecond ends before anything
/// begins at it. So equal inputs have equal timelines.
namespace braid {

struct SimOptions {
  bool contention =
      true;  ///< false: no task slows another, and links carry everything at full rate
  /// true: in the times of a rank, communication starts when that rank reaches it, as in a trace of
  /// an executor; false: when its last rank does. The end is the same.
  bool starts_on_arrival = false;
};

/// A rank, which represents all ranks that are alike: they run the same tasks at the same times.
struct SimRank {
  int rank = 0;            ///< the first of the alike ranks
  int num_ranks = 0;       ///< the number of alike ranks
  uint32_t program = 0;    ///< index into RankPrograms::programs
  int64_t end_ns = 0;      ///< of its last task
  int64_t compute_ns = 0;  ///< time in which a compute task runs
  size_t first_time = 0;   ///< index of its first task in SimResult::times
};

struct SimResult {
  int64_t step_ns = 0;           ///< end of the last task of all ranks
  AlikeRanks alike;              ///< the classes of alike ranks
  std::vector<SimRank> ranks;    ///< one of each class
  std::vector<TaskTimes> times;  ///< by task of each of `ranks`
};

/// The programs of all ranks with their calls matched and alike ranks found: what simulations with
/// different prices share. Cannot be moved; hold it by a pointer.
class MatchedPrograms {
 public:
  /// The programs must outlive it, and the model's cluster must have a device for every rank.
  /// Ranks on nodes of different `changes.node_network` are not alike; nothing else of `changes`
  /// matters. Throws InternalError naming ranks, tasks and groups if the programs do not satisfy
  /// `verify_ranks`.
  MatchedPrograms(RankPrograms ranks, const CostModel& model, const PriceChanges& changes = {});
  MatchedPrograms(const MatchedPrograms&) = delete;
  MatchedPrograms& operator=(const MatchedPrograms&) = delete;

  const RankPrograms& ranks() const { return ranks_; }
  const RankCalls& calls() const { return calls_; }

 private:
  RankPrograms ranks_;
  RankCalls calls_;
};

/// Simulates one set of programs, any number of times. The constructor matches calls, finds ranks
/// that are alike and prices each spec once: near-linear in the tasks of the distinct programs, and
/// in ranks times groups. A run allocates nothing, and takes O(log(streams)) per task.
class Simulator {
 public:
  /// Both must outlive the simulator, and the model's cluster must have a device for every rank.
  /// Throws InternalError naming ranks, tasks and groups if the programs do not satisfy
  /// `verify_ranks`, or have an op that the model cannot price. `routed_load`: of the rank to which
  /// most rows of experts come, for which the others wait, beside equal loads (RoutedRows).
  /// Ranks of different `changes.rank_compute` must have programs of their own
  /// (`split_by_speed`).
  Simulator(const RankPrograms& ranks, const CostModel& model, double routed_load = 1.0,
            const PriceChanges& changes = {});
  Simulator(Simulator&&) noexcept;
  Simulator& operator=(Simulator&&) noexcept;
  ~Simulator();

  /// The result is valid until the next run. If the programs do not run to their end, throws
  /// InternalError that lists the tasks that wait for each other, as `verify_ranks` does.
  const SimResult& run(const SimOptions& options = {});

 private:
  class State;
  std::unique_ptr<State> state_;
};

/// Runs a `Simulator` once.
SimResult simulate(const RankPrograms& ranks, const CostModel& model,
                   const SimOptions& options = {}, double routed_load = 1.0,
                   const PriceChanges& changes = {});
/// `changes` has no factors of single nodes or ranks, for which the calls would have to be matched
/// anew.
SimResult simulate(const MatchedPrograms& programs, const CostModel& model,
                   const SimOptions& options = {}, double routed_load = 1.0,
                   const PriceChanges& changes = {});

/// The same without the times of tasks: `SimResult::step_ns`.
int64_t simulate_step(const MatchedPrograms& programs, const CostModel& model,
                      const SimOptions& options = {}, double routed_load = 1.0,
                      const PriceChanges& changes = {});

/// The same programs, listed once for each factor of `rank_compute` with which ranks run them: such
/// ranks are not alike.
RankPrograms split_by_speed(RankPrograms ranks, const std::vector<double>& rank_compute);

/// The times of the tasks of one of `result.ranks`, by task of its program.
std::span<const TaskTimes> times_of(const RankPrograms& ranks, const SimResult& result,
                                    const SimRank& rank);

/// The timeline of `rank`, in the format of measured timelines.
RankTimeline simulated_timeline(const RankPrograms& ranks, const SimResult& result, int rank);

}  // namespace braid
