#pragma once

#include <cstdint>
#include <utility>

#include "ir/program.h"

namespace braid {

/// Where sharded weights are read long after they were read last (a tied embedding, one that layers
/// of multi-token prediction read again), decides whether they stay gathered in between. They do if
/// every unit that is gathered in between still has room beside them and the unit behind it:
///   bytes of the table + the most of two units in a row in between <= budget_bytes
/// so that it never pushes the next layer out. If not, they are gathered again for the later use,
/// into another buffer, which costs communication and no memory in between:
///   before: all_gather(t -> gt)  x(gt)  all_gather(b -> gb)  y(gb)  ...  z(gt)
///   after:  all_gather(t -> gt)  x(gt)  all_gather(b -> gb)  y(gb)  ...  all_gather(t -> gt2)
///   z(gt2)
/// Less than two units in between are no reason to do so. Returns the program, without events, and
/// the number of gathers that were added.
std::pair<Program, int64_t> gather_tables_again(Program program, int64_t budget_bytes);

}  // namespace braid
