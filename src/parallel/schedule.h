#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// kBackward is dgrad and wgrad together. A schedule that splits them has kDgrad and kWgrad jobs,
/// and whole backwards where a split would gain nothing.
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

/// Orders of jobs; docs/pipeline.md has pictures and formulae. In each of them a virtual stage sees
/// the microbatches in order, for forwards, dgrads and wgrads alike: main grads are summed in the
/// same order whatever the schedule.
enum class ScheduleKind : uint8_t {
  kGpipe,                  ///< all forwards, then all backwards (Huang et al., GPipe, 2019)
  kOneForwardOneBackward,  ///< "1f1b" (Narayanan et al., PipeDream-Flush, 2021)
  kInterleaved,            ///< 1f1b over several virtual stages per rank (Narayanan et al., 2021)
  kZbH1,       ///< 1f1b with wgrads in its bubbles, memory of 1f1b (Qi et al., Zero Bubble Pipeline
               ///< Parallelism, ICLR 2024)
  kZbV,        ///< two virtual stages in V shape, wgrads in the bubbles (Qi et al., Pipeline
               ///< Parallelism with Controllable Memory, 2024)
  kDualpipeV,  ///< V shape; forward and backward of different microbatches in pairs that are meant
               ///< to overlap (DeepSeek-AI, DualPipe, 2025; cut in half to a V)
};

/// Values of parallel.schedule, by ScheduleKind.
inline constexpr std::array<std::string_view, 6> kScheduleNames = {"gpipe", "1f1b", "interleaved",
                                                                   "zb-h1", "zb-v", "dualpipe-v"};

/// The value of parallel.schedule.
std::string_view schedule_name(ScheduleKind kind);
/// Throws ConfigError naming parallel.schedule and the names that there are.
ScheduleKind schedule_kind(std::string_view name);

/// Which neighbouring jobs a schedule makes independent of each other on every rank, so that pass
/// pair_forward_backward can weave them: as if both were one job, the ranks still do not wait for
/// each other in a circle.
enum class JobPairs : uint8_t {
  kNone,
  /// A forward and the backward behind it. 1f1b and zb-h1: 2 (P - 1 - rank) + 1 forwards in front
  /// of the first pair (at most M), for a microbatch passes a pair per rank on its way down and on
  /// its way back; interleaved: one more than without; dualpipe-v is made of pairs.
  kForwardBackward,
  /// Microbatches 2k and 2k + 1: F F B B. 1f1b of one rank, even M.
  kHalves,
};

/// Below: P = num_ranks, V = virtual_stages, M = num_microbatches, G = group size.
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  int num_ranks = 1;             ///< of one pipeline
  int virtual_stages = 1;        ///< per rank
  int64_t num_microbatches = 1;  ///< of one pipeline per step
  int64_t group_size = 0;        ///< interleaved: microbatches that pass a virtual stage before the
                                 ///< next one's turn; 0 = P
  JobPairs pairs = JobPairs::kNone;

  int num_stages() const { return num_ranks * virtual_stages; }
};

/// Throws ConfigError naming rule, values and nearest valid settings (parallel.schedule,
/// parallel.pipeline, parallel.virtual_stages, parallel.microbatch_group_size, train.global_batch,
/// overlap.pair_forward_backward) unless such a schedule exists:
///   gpipe, 1f1b, zb-h1   V = 1, any M
///   interleaved          V >= 2, P <= G <= M, M mod G = 0 or >= P
///   zb-v                 V = 2, any M
///   dualpipe-v           V = 2, M >= 2 P
/// and with pairs: kForwardBackward not for gpipe and zb-v; kHalves for 1f1b with P = 1, even M.
void check_schedule(const ScheduleOptions& options);

/// The jobs of all ranks of a pipeline. Throws ConfigError as `check_schedule`. Time: near-linear
/// in jobs.
std::vector<Schedule> make_schedules(const ScheduleOptions& options);
/// Those of one rank. Schedules with split backward cost as much as `make_schedules`.
Schedule make_schedule(const ScheduleOptions& options, int rank);

/// One stage: forward and backward of each microbatch in turn, so that the activations of one
/// microbatch live at a time. num_microbatches >= 1.
Schedule single_stage_schedule(int64_t num_microbatches);

/// Whether kDgrad and kWgrad jobs occur.
bool splits_backward(ScheduleKind kind);

/// Where a global stage is.
struct StagePlace {
  int rank = 0;
  int virtual_stage = 0;

  friend bool operator==(const StagePlace&, const StagePlace&) = default;
};

/// Global stage, 0 to P * V - 1 in the order in which a microbatch passes them forward:
/// virtual_stage * P + rank; in V shape (zb-v, dualpipe-v) rank, then 2 P - 1 - rank.
int stage_of(const ScheduleOptions& options, int rank, int virtual_stage);
/// Its inverse.
StagePlace place_of(const ScheduleOptions& options, int stage);

/// "F0.0 B0.0 D1.1 W1.1": kind (F forward, B backward, D dgrad, W wgrad), microbatch, virtual
/// stage.
std::string to_string(const Schedule& schedule);
/// Reads what `to_string` writes. Throws DataError naming the word and what was expected.
Schedule parse_schedule(std::string_view text);
/// 'F', 'B', 'D', 'W'.
char job_letter(JobKind kind);

}  // namespace braid
