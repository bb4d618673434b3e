#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace braid {

/// One fault found in a program, as one line that names the tasks.
struct Violation {
  std::string message;
};

/// What decides which tasks are ordered with each other.
enum class Ordering : uint8_t {
  kEvents,        ///< streams and events: as an executor runs the program
  kProgramOrder,  ///< one task after the other: for a program whose events are still to come
};

/// Checks a program without any help from the code that made its events:
///  - structure: ids in range, operands inside their buffers, shapes and dtypes equal to the
///  spec's,
///    each event recorded at most once and before it is waited for, an attribute "group" naming a
///    group with this rank;
///  - every step buffer is written before it is read, and no range by two operands of one task;
///  - races: any two tasks that touch overlapping ranges, one of them writing, are ordered by
///    happens-before, which is the transitive closure of stream order and record -> wait (vector
///    clocks, as in FastTrack, Flanagan and Freund 2009). None with Ordering::kProgramOrder.
/// Returns at most `max_violations`; empty means that the program is good. Near-linear in tasks x
/// streams.
std::vector<Violation> verify(const Program& program, size_t max_violations = 16,
                              Ordering ordering = Ordering::kEvents);

/// Throws InternalError with the first violations, naming `after` (a pass, or "builder").
void verify_or_throw(const Program& program, std::string_view after,
                     Ordering ordering = Ordering::kEvents);

}  // namespace braid
