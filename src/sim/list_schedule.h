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
  /// Bytes of step buffers on the device that may be alive at once, by program of RankPrograms;
  /// empty: no limit.
  std::vector<int64_t> live_bytes_limit;
  /// Jobs (forward or backward of a microbatch through a virtual stage) that compute may run ahead
  /// of the order of the program, where what is next must wait. 0: only weight gradients move.
  int64_t lookahead_jobs = 1;
  /// Where both could fill a wait, weight gradients do, which free memory, and not the next jobs,
  /// which need it but give other ranks something to do.
  bool wgrads_first = false;
  /// How much of a task must fit into a wait whose end is known, for it to fill that: what is too
  /// long holds up the task that waits. 0: anything may.
  double least_hidden_part = 0.5;
};

/// Duration of tasks by program and spec, as measured in a simulation where tasks slow each other;
/// empty, or -1 for a spec: what it takes alone.
using SpecTimes = std::vector<std::vector<int64_t>>;

struct ListSchedule {
  std::vector<std::vector<TaskId>> orders;  ///< by program: a permutation of its tasks
  int64_t step_ns = 0;                      ///< on the scheduler's clock
};

/// A better order of the tasks of all ranks at once. Which stream a task is on stays; its place
/// among the others of its stream is what is decided.
///
/// One run through the step, on a clock: whatever is free takes what is best of what is ready, and
/// a task is ready when all that it depends on (data, not the order of streams) has ended.
///  - Compute follows the spine: the tasks of the (first) compute stream but weight gradients, in
///    the order of the program, `undefine`s included, which say when memory goes to other streams
///    and thereby throttle these. Where the next task of the spine must wait, for another rank, a
///    stream or memory, compute does weight gradients that are ready, or tasks of the next
///    `lookahead_jobs` jobs.
///  - Weight gradients (phase wgrad) and `undefine`s that take memory back float: they run when
///    there is room for them, and in front of the spine's next task where more is to follow on them
///    than on that: sums over data ranks, one after the other. The order in which gradients are
///    added up is that of the program, since such tasks conflict.
///  - A communication begins on all of its ranks at once, when it is ready on all and the streams
///    are free. Among several goes first the one with the longest path to the end of the step over
///    all ranks, with the spine's order as a part of paths. Messages between two ranks keep their
///    order.
/// So the order in which tasks begin is one order for all ranks: no two wait for each other, and
/// what holds of `ranks` with VerifyRanksOptions::one_order_of_collectives and
/// one_order_of_messages holds of the result.
///
/// Live bytes are counted from the first to the last access of each step buffer. Weight gradients
/// go first where they would exceed the limit, and no job is begun that could keep the jobs in
/// front of it from being finished (the banker's algorithm, with the program's order as the safe
/// sequence; Dijkstra 1965). Ranks that share a program get one order: they meet when all are
/// ready. Tasks do not slow each other here; that is for `Simulator` to say.
///
/// Made once for some programs, whose dependencies, meetings and prices it finds, it can run with
/// several options.
///
/// Source: list scheduling (Graham 1969) with levels (Hu 1961); that weight gradients fill the
/// bubbles of pipelines: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024.
class ListScheduler {
 public:
  /// The programs must outlive it. Throws InternalError as `Simulator`.
  ListScheduler(const RankPrograms& ranks, const CostModel& model, const SpecTimes& spec_ns = {});
  ~ListScheduler();
  ListScheduler(const ListScheduler&) = delete;
  ListScheduler& operator=(const ListScheduler&) = delete;

  /// nullopt if it gets stuck, which a memory limit can bring about. Near-linear in the tasks of
  /// the distinct programs. Deterministic.
  std::optional<ListSchedule> run(const ListScheduleOptions& options = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// `ListScheduler` for one run.
std::optional<ListSchedule> list_schedule(const RankPrograms& ranks, const CostModel& model,
                                          const ListScheduleOptions& options = {});

/// The most bytes of step buffers on the device that are alive at once if the tasks of a program
/// run one after the other: what `live_bytes_limit` must allow at least.
int64_t peak_live_bytes(const Program& program);

}  // namespace braid
