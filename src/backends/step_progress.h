#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

/// How far a step is that the host cannot look into: each stream of the device leaves marks, words
/// of memory, in front of and behind every task that waits for other ranks. Marks and program say
/// what a step that does not end waits for, and the progress of all ranks says who is missing.
namespace braid {

/// Mark of a stream on which no such task of the step has begun. Later ones are larger.
inline constexpr uint32_t kNoMark = 0;
constexpr uint32_t begin_mark(TaskId task) {
  return 2 * task.value + 1;
}
constexpr uint32_t end_mark(TaskId task) {
  return 2 * task.value + 2;
}
/// Whether it is that of a task that has begun and not ended.
constexpr bool is_begin_mark(uint32_t mark) {
  return mark % 2 == 1;
}

/// What the device has left.
struct StepMarks {
  int64_t step = -1;            ///< of the launches, the one that began last; -1: none has
  size_t program = 0;           ///< that it runs
  std::vector<uint32_t> marks;  ///< by stream of the program

  friend bool operator==(const StepMarks&, const StepMarks&) = default;
};

/// One rank's part in a communication.
struct ProgressCall {
  std::string place;       ///< "group data", "group pipeline, channel 2 from rank 0 to rank 3"
  std::vector<int> ranks;  ///< the parties
  int64_t number = 0;      ///< at that place in the step, from 1
  std::string call;        ///< "all_reduce of 128 f32 (all_reduce head)"
  std::string task;        ///< of this rank: "stream comm.data, task 31 (all_reduce head)"
};

/// Where a rank is.
struct RankProgress {
  int64_t step = -1;                 ///< as in StepMarks: equal on ranks that are in one step
  std::vector<ProgressCall> open;    ///< have begun and not ended, in program order
  std::optional<ProgressCall> last;  ///< of those that have ended the last in program order
  /// By place, with its ranks: number of the last call that has begun there.
  std::map<std::string, int64_t> num_begun;
};

/// `program` is the one that the marks are of.
RankProgress progress_of(const Program& program, const StepMarks& marks);

/// "stream comm.data, task 31 (all_reduce head) in group data", of the call that ended last; empty
/// if none has.
std::string describe_last(const RankProgress& progress);

/// For other processes of the run.
std::string to_bytes(const RankProgress& progress);
/// Throws DeviceError for other bytes.
RankProgress progress_from_bytes(std::string_view bytes);

/// Of several ranks. Others do not answer.
using ProgressOfRanks = std::map<int, RankProgress>;

/// Why a step of `rank`, which is one of `ranks`, does not end, to stand behind the name of that
/// step: ", stream comm.data, task 31 (all_reduce head): waits with all_reduce of 128 f32
/// (all_reduce head) in group data, call 2, for rank 1; rank 1: in step 5, last call ...,
/// finished". Where it waits in several tasks, the first one in program order with somebody
/// missing. ": waits for no other rank, in step 5, last call ..., finished" if no task does.
std::string wait_clause(int rank, const ProgressOfRanks& ranks);

/// The same where another rank has failed for that `reason`: ", stream comm.data, task 31
/// (all_reduce head): in group data: rank 1 has ended"; ": rank 1 has ended" where no task waits.
std::string wait_clause(const RankProgress& progress, std::string_view reason);

}  // namespace braid
