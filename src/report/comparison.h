#pragma once

#include <string>

#include "report/report_html.h"

namespace braid {

/// The table that `braid report --compare` prints: what two runs learned and what a step cost. Rows
/// that only one of them has are left out; differences are from `a` to `b`, in percent.
///
///                                    bf16         fp8  difference
///   loss, steps 1 to 500           5.1234      5.1301      +0.13%     means over fifths of the
///   ...                                                               steps that both have
///   loss, steps 2001 to 2500       3.4120      3.4155      +0.10%
///   held-out loss, last            3.4310      3.4342      +0.09%
///   step time, median              183 ms      141 ms      -23.0%
///   tokens/s                        22161       28760      +29.8%
///   peak memory of a rank        61.2 GiB    55.0 GiB      -10.1%
///
/// A mean over many steps is the smoothed loss: runs with the same data in the same order differ
/// far less in it than in any one step. Throws DataError for a damaged report.
std::string describe_comparison(const RunReport& a, const RunReport& b);

/// What the FP8 copies of a run lost, and the layers with the least equal loads of experts, as text
/// (fp8_table.h, expert_loads.h); empty unless the run counted them.
/// Throws DataError for a damaged report.
std::string describe_tables(const RunReport& run);

}  // namespace braid
