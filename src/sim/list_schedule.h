#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ir/program.h"
#include "parallel/verify_ranks.h"
#include "sim/cost_model.h"

namespace braid {

struct ListScheduleOptions {
  /// The limit of live bytes of step buffers on the device, by program of RankPrograms; empty: no
  /// limit.
  std::vector<int64_t> live_bytes_limit;
  /// The number of jobs (forward or backward of a microbatch through a virtual stage) by which
  /// compute may run ahead of program order when the next job must wait. 0: only weight gradients
  /// move.
  int64_t lookahead_jobs = 1;
  /// If both could fill a wait: true takes weight gradients, which free memory; false takes the
  /// next jobs, which need memory but give other ranks work.
  bool wgrads_first = false;
  /// The fraction of a task that must fit into a wait whose end is known: a task that is too long
  /// delays the one that waits. 0: any task may fill it.
  double least_hidden_part = 0.5;
};

/// Durations of tasks by program and spec, measured in a simulation in which tasks slow each other;
/// if empty, or -1 for a spec, its duration alone.
using SpecTimes = std::vector<std::vector<int64_t>>;

struct ListSchedule {
  std::vector<std::vector<TaskId>> orders;  ///< by program: a permutation of its tasks
  int64_t step_ns = 0;                      ///< on the scheduler's clock
};

/// Finds a better order of the tasks of all ranks at once. Tasks keep their streams; the scheduler
/// decides their order on each stream.
///
/// It runs through the step once, on a clock: a free unit takes the best of the ready tasks, and a
/// task is ready when everything that it depends on (data, not the order of streams) has ended.
///  - Compute follows the spine: the tasks of the (first) compute stream except weight gradients,
///    in program order. The spine includes `undefine`s, which determine when memory goes to other
///    streams and so throttle these. If the next task of the spine must wait for another rank, a
///    stream or memory, compute runs weight gradients that are ready, or tasks of the next
///    `lookahead_jobs` jobs.
///  - Weight gradients (phase wgrad) and `undefine`s that take memory back float: they run when
///    there is room for them. They run before the spine's next task if a longer path follows them,
///    because of sums over data ranks that run one after the other. Gradients are added up in
///    program order, since such tasks conflict.
///  - A communication begins on all of its ranks at once, when it is ready on all and the streams
///    are free. The one with the longest path to the end of the step over all ranks goes first;
///    paths include the order of the spine. Messages between two ranks keep their order. A sum of
///    figures, such as the norm of gradients, follows all calls before it, because other ranks may
///    count what those have brought.
///
/// So tasks begin in one order for all ranks, and no two wait for each other. If `ranks` satisfies
/// VerifyRanksOptions::one_order_of_collectives and one_order_of_messages, so does the result.
///
/// Live bytes are counted from the first to the last access of each step buffer. If the next task
/// would exceed the limit, weight gradients go first. No job begins that could keep earlier jobs
/// from finishing (the banker's algorithm, with program order as the safe sequence; Dijkstra 1965).
/// Ranks that share a program get one order: a call begins when all are ready. Tasks do not slow
/// each other here; `Simulator` takes that into account.
///
/// The constructor finds dependencies, matching calls and prices; then it can run with several
/// options.
///
/// Source: list scheduling (Graham 1969) with levels (Hu 1961); filling pipeline bubbles with
/// weight gradients: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024.
class ListScheduler {
 public:
  /// The programs must outlive it. Throws InternalError as `Simulator`.
  ListScheduler(const RankPrograms& ranks, const CostModel& model, const SpecTimes& spec_ns = {});
  ~ListScheduler();
  ListScheduler(const ListScheduler&) = delete;
  ListScheduler& operator=(const ListScheduler&) = delete;

  /// nullopt if it gets stuck, which is possible with a memory limit. Near-linear in the tasks of
  /// the distinct programs. Deterministic.
  std::optional<ListSchedule> run(const ListScheduleOptions& options = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Runs a `ListScheduler` once.
std::optional<ListSchedule> list_schedule(const RankPrograms& ranks, const CostModel& model,
                                          const ListScheduleOptions& options = {});

/// The maximum of live bytes of step buffers on the device if the tasks of a program run one after
/// the other: a lower bound for `live_bytes_limit`.
int64_t peak_live_bytes(const Program& program);

}  // namespace braid
