#pragma once

#include "sim/profile.h"

namespace braid {

/// All points of both; where both have one, the newer's. Overheads, rates, contention and origin
/// are the newer's, where it has them. Throws DataError that names what differs unless both are of
/// the same device, software and threads: durations of two devices are not one profile.
Profile merge_profiles(const Profile& older, const Profile& newer);

}  // namespace braid
