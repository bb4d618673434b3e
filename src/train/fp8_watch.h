#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/process_group.h"
#include "report/records.h"
#include "runtime/engine.h"

namespace braid {

/// The records of a step from what all ranks lost, in the order in which places first occur: the
/// largest magnitude of all ranks, and shares of the elements of all ranks.
std::vector<Fp8Record> fp8_records(int64_t step, const std::vector<Fp8Losses>& losses);

/// The same for the step that the engine has ended last. All processes must call it.
std::vector<Fp8Record> gather_fp8(const Engine& engine, ProcessGroup& processes, int64_t step);

/// Losses as one process gives them to the others. `fp8_losses_of` throws DataError for other
/// bytes.
std::string fp8_bytes(const std::vector<Fp8Losses>& losses);
std::vector<Fp8Losses> fp8_losses_of(const std::string& bytes);

}  // namespace braid
