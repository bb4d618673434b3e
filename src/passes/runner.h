#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "passes/pass.h"

namespace braid {

struct RunOptions {
  std::vector<std::string> disabled_passes;  ///< names; an unknown one is a ConfigError
  bool verify = true;                        ///< run the verifier on the input and after each pass
  std::string dump_folder;  ///< program text before and after each pass; empty: nowhere
};

/// What became of one pass of the list.
struct PassRecord {
  std::string_view name;
  bool skipped = false;
  int64_t duration_ns = 0;  ///< of the pass alone, without verification and dump
  PassReport report;        ///< if skipped: `summary` says why
};

struct PipelineResult {
  Program program;
  std::vector<PassRecord> records;  ///< one per pass, in order
};

/// Runs the passes in order. Each is skipped if disabled, timed, verified and dumped as
/// "NNN_name.txt" (000 is the input, NNN counts the list, skipped passes too); an unchanged program
/// is noted as such instead of repeated. A program between passes has no events yet, so it is
/// verified in program order; the last one, and what comes from a pass that places events, is
/// verified with its streams and events. After each pass that changes a program and may not change
/// rounding, the program must compute what it did before (step_meaning.h). Throws ConfigError for a
/// name that no pass has or that is required, InternalError naming the pass (and its dump) after
/// which a program is wrong or computes something else, DataError if a dump cannot be written.
PipelineResult run_passes(Program program, std::span<const Pass> passes,
                          const PassContext& context = {}, const RunOptions& options = {});

}  // namespace braid
