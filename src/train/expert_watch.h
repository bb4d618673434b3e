#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/forward.h"
#include "report/records.h"
#include "runtime/step_tallies.h"

namespace braid {

struct ExpertRecordOptions {
  int64_t step = 0;
  RouterLosses coefficients = {};  ///< by which losses are divided
  bool with_counts = false;        ///< records have the rows of each expert
};

/// The records of a step from what all ranks counted, in the order of layers: sums over all ranks.
/// Other tallies are ignored. Throws DataError if ranks counted different numbers of experts.
std::vector<ExpertRecord> expert_records(const StepTallies& tallies,
                                         const ExpertRecordOptions& options);

/// The largest use of room, of ranks or experts, and the share of dropped rows over all layers of a
/// step.
struct WorstRoom {
  double used = 0;           ///< RoomRecord::room_used
  double dropped_share = 0;  ///< of the layer that dropped most
};

/// Nothing if no layer has a record of its room.
std::optional<WorstRoom> worst_room(const std::vector<ExpertRecord>& records);

/// The largest number of rows of an expert beside the mean of its layer, over all layers; 0 if
/// there are no records.
double worst_load(const std::vector<ExpertRecord>& records);

}  // namespace braid
