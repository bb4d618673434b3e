#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/records.h"

namespace braid {

/// What a run measured, in the order in which it was measured.
struct Metrics {
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evaluations;
};

/// One line of metrics.jsonl, "\n" included: an object with the members of the record under their
/// names; the loss of an evaluation is "valid_loss". Numbers are read back as the same bits; JSON
/// has no infinities and NaNs, so these become null.
std::string metrics_line(const StepRecord& record);
std::string metrics_line(const EvalRecord& record);

/// Reads lines of `metrics_line`; null is NaN. Members that are not known are ignored, so that a
/// newer file can be read. The last line is left out if it is torn (no "\n", or no object), as a
/// killed process leaves it. No file: no records. Throws DataError naming file and line.
Metrics read_metrics(const std::string& path);

/// Prepares the file for a process that continues with step `first_step`: atomically replaces it by
/// its lines of earlier steps, as they are (by an empty file if `first_step` is 1, which starts
/// from scratch), and returns these. Throws DataError if it cannot be read or written.
Metrics keep_metrics_before(const std::string& path, int64_t first_step);

}  // namespace braid
