#pragma once

#include <cstddef>
#include <vector>

#include "comm/comm_call.h"

namespace braid {

/// Computes this party's y of a call from the parts of all parties, in party order: the part of a
/// party's x that `sent_part` (remote_call.h) names. Sums are bitwise equal to those of ranks that
/// read each other's memory (Meeting::do_share).
void write_result(const CommCall& call, size_t party, const std::vector<const std::byte*>& parts);

}  // namespace braid
