#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/records.h"

namespace braid {

/// The measurements of a run, in order.
struct Metrics {
  std::vector<StepRecord> steps;
  std::vector<EvalRecord> evaluations;
  std::vector<RerunRecord> reruns;
  std::vector<Fp8Record> fp8;
  std::vector<ExpertRecord> experts;
  int64_t num_damaged_lines = 0;  ///< that were left out
  std::string first_damage;       ///< of these: file, line number and reason
};

/// One line of metrics.jsonl, "\n" included: an object with the members of the record under their
/// names; the loss of an evaluation is "valid_loss", the message of a rerun "rerun", the site of
/// an FP8 record "fp8_site", the layer of a record of experts "expert_layer". Numbers are
/// those of pairs have the names of TRL's DPOTrainer: "rewards/chosen" and so on. Numbers are
/// read back bit for bit; infinities and NaNs, which JSON lacks, become null.
std::string metrics_line(const StepRecord& record);
std::string metrics_line(const EvalRecord& record);
std::string metrics_line(const RerunRecord& record);
std::string metrics_line(const Fp8Record& record);
std::string metrics_line(const ExpertRecord& record);

/// Reads lines of `metrics_line`; null is NaN. Ignores unknown members, so that it can read newer
/// files. Leaves out damaged lines and counts them, but for the last line if it is incomplete (no
/// "\n", or not an object), as after a killed process. A missing file has no records. Throws
/// DataError if the file cannot be read.
Metrics read_metrics(const std::string& path);

/// Prepares the file for a process that continues with step `first_step`: atomically replaces it by
/// its lines of earlier steps and of all reruns, unchanged (by an empty file if `first_step` is 1,
/// a start from scratch), and returns their records. Damaged lines are left out: measurements are
/// no reason to refuse to train. Throws DataError if it cannot be read or written.
Metrics keep_metrics_before(const std::string& path, int64_t first_step);

/// A line for the user about the lines that were left out; empty if there are none.
std::string damage_note(const Metrics& metrics);

}  // namespace braid
