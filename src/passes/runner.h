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
  std::vector<PassRecord> records;  ///< one per pass that ran or was skipped, in order
};

/// Where a program is dumped below a folder of dumps: "FOLDER/rank0.train". Empty for no folder.
std::string dump_folder_of(const std::string& folder, const Program& program);

/// Runs the passes over one rank in order, and leaves out those over all. Each is skipped if
/// disabled, timed, verified and dumped as "NNN_name.txt" (000 is the input, NNN counts the list,
/// skipped passes too); an unchanged program is noted as such instead of repeated. A program
/// between passes has no events yet, so it is verified in program order; the last one, and what
/// comes from a pass that places events, is verified with its streams and events. After each pass
/// that changes a program, the program must compute what it did before: the same bits
/// (step_meaning.h), or, if the pass may change rounding, products that cover the same elements
/// (work_coverage.h). Throws ConfigError for a name that no pass has or that is required,
/// InternalError naming the pass (and its dump) after which a program is wrong or computes
/// something else, DataError if a dump cannot be written.
PipelineResult run_passes(Program program, std::span<const Pass> passes,
                          const PassContext& context = {}, const RunOptions& options = {});

/// Runs the passes over all ranks of a list in order, and leaves out those over one. Each is
/// skipped if disabled, timed and dumped as above, below `dump_folder_of`, with the number that it
/// has in the whole list. After one that changes something, every program is verified with its
/// events and must compute what it did before, and the programs of all ranks must fit together.
/// Returns one record per pass. Errors as above.
std::vector<PassRecord> run_all_passes(AllRanks& all, std::span<const Pass> passes,
                                       const PassContext& context, const RunOptions& options);

}  // namespace braid
