#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

/// The progress of a step that the host cannot inspect: each stream of the device writes marks
/// (words of memory) before and after every task that waits for other ranks. Marks and program show
/// what a step that does not end waits for; the progress of all ranks shows which ranks are
/// missing.
namespace braid {

/// The mark of a stream on which no such task of the step has begun. Later marks are larger.
inline constexpr uint32_t kNoMark = 0;
constexpr uint32_t begin_mark(TaskId task) {
  return 2 * task.value + 1;
}
constexpr uint32_t end_mark(TaskId task) {
  return 2 * task.value + 2;
}
/// Whether the mark is that of a task that has begun and not ended.
constexpr bool is_begin_mark(uint32_t mark) {
  return mark % 2 == 1;
}

/// The marks that the device has written.
struct StepMarks {
  int64_t step = -1;            ///< number of the launch that began last; -1: none
  size_t program = 0;           ///< the program of that launch
  std::vector<uint32_t> marks;  ///< by stream of the program

  friend bool operator==(const StepMarks&, const StepMarks&) = default;
};

/// One rank's part in a communication.
struct ProgressCall {
  std::string place;       ///< the group or channel: "group data", "group pipeline, channel 2 from
                           ///< rank 0 to rank 3"
  std::vector<int> ranks;  ///< the parties
  int64_t number = 0;      ///< number at that place in the step, from 1
  std::string call;        ///< "all_reduce of 128 f32 (all_reduce head)"
  std::string task;        ///< this rank's task: "stream comm.data, task 31 (all_reduce head)"
};

/// The progress of a rank.
struct RankProgress {
  int64_t step = -1;                 ///< as in StepMarks: equal on ranks that are in the same step
  std::vector<ProgressCall> open;    ///< calls that have begun and not ended, in program order
  std::optional<ProgressCall> last;  ///< the last in program order of the calls that have ended
  /// By place with its ranks: the number of the last call that has begun there.
  std::map<std::string, int64_t> num_begun;
};

/// `program` is the program of the marks.
RankProgress progress_of(const Program& program, const StepMarks& marks);

/// "stream comm.data, task 31 (all_reduce head) in group data" for the call that ended last; empty
/// if there is none.
std::string describe_last(const RankProgress& progress);

/// Serializes the progress for other processes of the run.
std::string to_bytes(const RankProgress& progress);
/// Throws DeviceError for other bytes.
RankProgress progress_from_bytes(std::string_view bytes);

/// The progress of several ranks. Ranks that do not answer are missing.
using ProgressOfRanks = std::map<int, RankProgress>;

/// Why a step of `rank`, which is one of `ranks`, does not end, as a continuation of the step's
/// name: ", stream comm.data, task 31 (all_reduce head): waits with all_reduce of 128 f32
/// (all_reduce head) in group data, call 2, for rank 1; rank 1: in step 5, last call ...,
/// finished". If several tasks wait, the first one in program order for which a rank is missing. ":
/// waits for no other rank, in step 5, last call ..., finished" if no task waits.
std::string wait_clause(int rank, const ProgressOfRanks& ranks);

/// The same after another rank has failed for `reason`: ", stream comm.data, task 31 (all_reduce
/// head): in group data: rank 1 has ended"; ": rank 1 has ended" if no task waits.
std::string wait_clause(const RankProgress& progress, std::string_view reason);

}  // namespace braid
