#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// kBackward is dgrad and wgrad together. A schedule that splits the backward has kDgrad and kWgrad
/// jobs, and kBackward jobs where a split would not help.
enum class JobKind : uint8_t { kForward, kBackward, kDgrad, kWgrad };

/// One unit of a pipeline schedule: one microbatch through one virtual stage.
struct Job {
  JobKind kind = JobKind::kForward;
  int32_t microbatch = 0;
  int32_t virtual_stage = 0;

  friend bool operator==(const Job&, const Job&) = default;
};

/// Jobs of one rank in order.
using Schedule = std::vector<Job>;

/// Orders of jobs; docs/pipeline.md has pictures and formulae. In every schedule a virtual stage
/// processes microbatches in order, for forwards, dgrads and wgrads alike. Main grads are therefore
/// summed in the same order in all schedules.
enum class ScheduleKind : uint8_t {
  kGpipe,                  ///< all forwards, then all backwards (Huang et al., GPipe, 2019)
  kOneForwardOneBackward,  ///< "1f1b" (Narayanan et al., PipeDream-Flush, 2021)
  kInterleaved,            ///< 1f1b over several virtual stages per rank (Narayanan et al., 2021)
  kZbH1,       ///< 1f1b with wgrads in its bubbles and the memory of 1f1b (Qi et al., Zero Bubble
               ///< Pipeline Parallelism, ICLR 2024)
  kZbV,        ///< two virtual stages in a V shape, wgrads in the bubbles (Qi et al., Pipeline
               ///< Parallelism with Controllable Memory, 2024)
  kDualpipeV,  ///< V shape; pairs of a forward and a backward of different microbatches that are
               ///< meant to overlap (DeepSeek-AI, DualPipe, 2025; cut in half to a V)
};

/// Values of parallel.schedule, by ScheduleKind.
inline constexpr std::array<std::string_view, 6> kScheduleNames = {"gpipe", "1f1b", "interleaved",
                                                                   "zb-h1", "zb-v", "dualpipe-v"};

/// The value of parallel.schedule.
std::string_view schedule_name(ScheduleKind kind);
/// Throws ConfigError with parallel.schedule and the valid names.
ScheduleKind schedule_kind(std::string_view name);

/// Which neighbouring jobs a schedule makes independent of each other on every rank, so that pass
/// pair_forward_backward can interleave them. Ranks do not wait for each other in a circle even if
/// each pair runs as one job.
enum class JobPairs : uint8_t {
  kNone,
  /// A forward and the backward after it. In 1f1b and zb-h1, 2 (P - 1 - rank) + 1 forwards (at most
  /// M) precede the first pair, because a microbatch passes one pair per rank on its way down and
  /// on its way back. Interleaved has one forward more than without pairs; dualpipe-v consists of
  /// pairs.
  kForwardBackward,
  /// Microbatches 2k and 2k + 1, in the order F F B B. Only for 1f1b with one rank and even M.
  kHalves,
};

/// Notation below: P = num_ranks, V = virtual_stages, M = num_microbatches, G = group size.
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  int num_ranks = 1;             ///< of one pipeline
  int virtual_stages = 1;        ///< per rank
  int64_t num_microbatches = 1;  ///< of one pipeline per step
  int64_t group_size = 0;  ///< interleaved: consecutive microbatches that pass a virtual stage
                           ///< before the next one runs; 0 = P
  JobPairs pairs = JobPairs::kNone;

  int num_stages() const { return num_ranks * virtual_stages; }
};

/// Throws ConfigError unless the schedule exists. The message has the rule, the values and the
/// nearest valid settings (parallel.schedule, parallel.pipeline, parallel.virtual_stages,
/// parallel.microbatch_group_size, train.global_batch, overlap.pair_forward_backward):
///    gpipe, 1f1b, zb-h1   V = 1, any M
///    interleaved          V >= 2, P <= G <= M, M mod G = 0 or >= P
///    zb-v                 V = 2, any M
///    dualpipe-v           V = 2, M >= 2 P
/// With pairs: kForwardBackward is not valid for gpipe and zb-v; kHalves requires 1f1b, P = 1 and
/// even M.
void check_schedule(const ScheduleOptions& options);

/// The jobs of all ranks of a pipeline. Throws ConfigError as `check_schedule`. Near-linear time in
/// jobs.
std::vector<Schedule> make_schedules(const ScheduleOptions& options);
/// The jobs of one rank. A schedule that splits the backward costs as much as `make_schedules`.
Schedule make_schedule(const ScheduleOptions& options, int rank);

/// Schedule of a single stage: forward and backward of each microbatch in turn, so that activations
/// of only one microbatch are live. Requires num_microbatches >= 1.
Schedule single_stage_schedule(int64_t num_microbatches);

/// True if the schedule has kDgrad and kWgrad jobs.
bool splits_backward(ScheduleKind kind);

/// The rank and virtual stage of a global stage.
struct StagePlace {
  int rank = 0;
  int virtual_stage = 0;

  friend bool operator==(const StagePlace&, const StagePlace&) = default;
};

/// Global stage, 0 to P * V - 1 in the order in which a microbatch passes them in the forward. It
/// is virtual_stage * P + rank, but in V shape (zb-v, dualpipe-v) rank for virtual stage 0 and 2 P
/// - 1 - rank for virtual stage 1.
int stage_of(const ScheduleOptions& options, int rank, int virtual_stage);
/// Inverse of `stage_of`.
StagePlace place_of(const ScheduleOptions& options, int stage);

/// Prints "F0.0 B0.0 D1.1 W1.1": kind (F forward, B backward, D dgrad, W wgrad), microbatch,
/// virtual stage.
std::string to_string(const Schedule& schedule);
/// Parses the output of `to_string`. Throws DataError with the word and what was expected.
Schedule parse_schedule(std::string_view text);
/// 'F', 'B', 'D', 'W'.
char job_letter(JobKind kind);

}  // namespace braid
