#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "passes/all_ranks.h"
#include "passes/pass.h"

namespace braid {

struct RunOptions {
  std::vector<std::string> disabled_passes;  ///< names; an unknown name is a ConfigError
  bool verify = true;                        ///< run the verifier on the input and after each pass
  std::string dump_folder;  ///< for program text before and after each pass; empty: no dumps
};

/// The result of one pass of the list.
struct PassRecord {
  std::string_view name;
  bool skipped = false;
  int64_t duration_ns = 0;  ///< of the pass alone, without verification and dump
  PassReport report;        ///< for a skipped pass `summary` says why
};

struct PipelineResult {
  Program program;
  std::vector<PassRecord> records;  ///< one per pass that ran or was skipped, in order
};

/// The folder for the dumps of a program: "FOLDER/rank0.train". Empty if `folder` is empty.
std::string dump_folder_of(const std::string& folder, const Program& program);

/// Runs the passes over one rank in order; ignores passes over all ranks. Skips disabled passes.
/// Times and verifies each pass and dumps its program as "NNN_name.txt". 000 is the input; NNN is
/// the position in the list, counting skipped passes. The dump of an unchanged program only says
/// that it is unchanged.
///
/// A program between passes has no events yet, so it is verified in program order. The final
/// program, and the program after a pass that places events, is verified with its streams and
/// events. After each pass that changes a program, the program must still compute the same
/// (step_meaning.h): the same bits or, if the pass cuts tasks (`changes_rounding`, `splits_calls`),
/// the same but for rounding. Where StepMeaning does not follow such a pass, only the products are
/// compared (work_coverage.h).
///
/// Throws ConfigError if a disabled name is unknown or required; InternalError, naming the pass and
/// its dump, if the program after a pass is wrong or computes something else; DataError if a dump
/// cannot be written.
PipelineResult run_passes(Program program, std::span<const Pass> passes,
                          const PassContext& context = {}, const RunOptions& options = {});

/// Runs the passes over all ranks in order; ignores passes over one rank. Skips, times and dumps
/// passes as `run_passes` does, to `dump_folder_of` of each program, numbered by position in the
/// whole list. After a pass that changes something, every program is verified with its events and
/// must still compute the same, and the programs of all ranks must match. Returns one record per
/// pass. Throws as `run_passes`.
std::vector<PassRecord> run_all_passes(AllRanks& all, std::span<const Pass> passes,
                                       const PassContext& context, const RunOptions& options);

}  // namespace braid
