#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace braid {

/// One fault in a program, as one line that names the tasks.
struct Violation {
  std::string message;
};

/// What orders tasks with respect to each other.
enum class Ordering : uint8_t {
  kEvents,        ///< streams and events, as an executor runs the program
  kProgramOrder,  ///< program order, for a program without events yet
};

/// Checks a program independently of the code that inserted its events:
///  - structure: ids are in range; operands lie inside their buffers; shapes and dtypes equal those
///    of the spec; each event is recorded at most once and before it is waited for; an attribute
///    "group" names a group that contains this rank;
///  - every step buffer is written before it is read, and no two operands of one task write the
///    same range;
///  - races: any two tasks that touch overlapping ranges, at least one of them writing, are ordered
///    by happens-before, which is the transitive closure of stream order and record -> wait (vector
///    clocks, as in FastTrack, Flanagan and Freund 2009). Skipped for Ordering::kProgramOrder.
/// Returns at most `max_violations`; an empty result means that the program is valid. Runs in
/// near-linear time in tasks x streams.
std::vector<Violation> verify(const Program& program, size_t max_violations = 16,
                              Ordering ordering = Ordering::kEvents);

/// Throws InternalError with the first violations. `after` names the pass that ran last, or
/// "builder".
void verify_or_throw(const Program& program, std::string_view after,
                     Ordering ordering = Ordering::kEvents);

}  // namespace braid
