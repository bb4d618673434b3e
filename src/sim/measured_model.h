#pragma once

#include <memory>

#include "sim/cost_model.h"
#include "sim/profile.h"

namespace braid {

/// Prices from measurements. A measured spec costs its measured time. Another spec of the same op
/// and dtype:
///  - matrix products and attention cost the analytic model's time, multiplied by its error factor
///    at the measured shapes (their efficiency relative to a model of tiles and waves),
///    interpolated over the logarithms of (rows, columns, depth) or of (sequence, heads in all
///    sequences, head size). The result is at least the time of a measured shape with no larger
///    size, and at most that of one with no smaller size;
///  - the others are interpolated linearly between their neighbours in bytes.
///
/// An op without measurements costs the analytic model's time.
std::unique_ptr<CostModel> make_measured_model(const Profile& profile, int num_devices);

/// Whether the text that names costs is the path of a profile; otherwise it is a cluster.
bool names_profile(std::string_view text);

/// The model that `--cost` names: a profile if the text has a '/' or ends in ".json", otherwise a
/// cluster name. A profile becomes a cluster of at least `num_devices` of its device, in whole
/// nodes. Throws ConfigError or DataError; also ConfigError if the cluster has fewer than
/// `num_devices`.
std::unique_ptr<CostModel> load_cost_model(std::string_view text, int num_devices);

}  // namespace braid
