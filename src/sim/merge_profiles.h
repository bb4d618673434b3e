#pragma once

#include "sim/profile.h"

namespace braid {

/// All points of both; if both have a point, the newer one. Overheads, rates, contention and origin
/// are those of `newer`, if it has them. Throws DataError that names the difference unless both are
/// of the same device, software and threads: durations of two devices do not form one profile.
Profile merge_profiles(const Profile& older, const Profile& newer);

}  // namespace braid
