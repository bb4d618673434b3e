#pragma once

#include <cstddef>
#include <string>

#include "config/run_config.h"
#include "tune/search_layouts.h"

namespace braid {

struct SearchTableOptions {
  size_t rows = 10;           ///< of the table, at most
  std::string run_file = {};  ///< for the command line below it; empty: none
};

/// The fastest layout of a search that goes on, in one line, and a table of up to `rows` layouts:
///   found     4.61 s: tp8 pp8 v8 cp2 ring dp4 shard=optimizer mb1, 70.1 GiB; 8 simulated
/// If nothing is found yet, what is known of the run file's own layout:
///   run file  tp8 pp8 dp8 mb1: 19.7 s, 82.0 GiB by estimate, more than 79.0 GiB
std::string describe_found(const LayoutSearch& search, size_t rows = 0);

/// Describes the search: counts, a table of the fastest layouts, where each other row loses time,
/// the place of the run file's own layout, and the `--set` options of the best one (relative to the
/// searched `config`).
///   run file  place 7 of 41: tp8 pp8 dp8 mb1, 5.02 s (+8.9%)
std::string describe_search(const LayoutSearch& search, const RunConfig& config,
                            const SearchTableOptions& options = {});

/// The same as a JSON object: "counts", "memory_limit_bytes", "layouts" with up to `rows` of them,
/// each with its keys, times in nanoseconds and bytes, and "given", the run file's own, with its
/// "place" if it fits.
std::string search_json(const LayoutSearch& search, const RunConfig& config, size_t rows);

/// "+2.1%: 0.31 s more exposed tensor communication, 0.10 s less idle time": how the step of
/// `slower` differs from that of `best`, largest part first. Parts below a tenth of the difference
/// are left out.
std::string why_slower(const RankedLayout& slower, const RankedLayout& best);

}  // namespace braid
