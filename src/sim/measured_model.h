#pragma once

#include <memory>

#include "sim/cost_model.h"
#include "sim/profile.h"

namespace braid {

/// Prices by what was measured. A spec that was measured costs what it took. Another one of the
/// same op and dtype:
///  - matrix products and attention cost what the analytic model says, times how far it was off at
///    the measured shapes (their efficiency, relative to one that knows tiles and waves),
///    interpolated over the logarithms of (rows, columns, depth) or of (sequence, heads in all
///    sequences, head size), and no less than a measured one of which no size is larger, no more
///    than one of which no size is smaller;
///  - the others cost what the line between their neighbours in bytes says.
/// An op of which nothing was measured costs what the analytic model says.
std::unique_ptr<CostModel> make_measured_model(const Profile& profile, int num_devices);

/// The model that `--cost` names: a profile if the text has a '/' or ends in ".json", else a
/// cluster name. A profile counts as a cluster of at least `num_devices` of its device, in whole
/// nodes. Throws ConfigError or DataError; ConfigError too if the cluster has fewer than
/// `num_devices`.
std::unique_ptr<CostModel> load_cost_model(std::string_view text, int num_devices);

}  // namespace braid
