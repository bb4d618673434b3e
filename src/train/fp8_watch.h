#pragma once

#include <cstdint>
#include <vector>

#include "report/records.h"
#include "runtime/step_tallies.h"

namespace braid {

/// The records of a step from what all ranks lost, in the order in which places first occur: the
/// largest magnitude of all ranks, and shares of the elements of all ranks. Other tallies are
/// ignored. Throws DataError for a tally that is no Fp8Tally.
std::vector<Fp8Record> fp8_records(int64_t step, const std::vector<Tally>& tallies);

}  // namespace braid
