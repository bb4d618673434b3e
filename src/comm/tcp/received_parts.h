#pragma once

#include <cstddef>
#include <vector>

#include "comm/comm_call.h"

namespace braid {

/// Writes this party's y of a call out of what each party has for it, in party order: the part of
/// its x that `sent_part` (remote_call.h) names; its own in its place. Sums are bitwise those of
/// ranks that read each other's memory (Meeting::do_share).
void write_result(const CommCall& call, size_t party, const std::vector<const std::byte*>& parts);

}  // namespace braid
