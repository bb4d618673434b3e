#pragma once

#include <span>
#include <string>
#include <vector>

#include "trace/timeline.h"

namespace braid {

/// A number of one rank over a step, such as bytes in use.
struct TraceCounter {
  size_t step = 0;  ///< index of the timeline
  int rank = 0;
  std::string name;
  std::vector<int64_t> time_ns;  ///< ascending; each value holds until the next time
  std::vector<int64_t> values;
};

/// Steps as Chrome trace events, one step after the other, for Perfetto (ui.perfetto.dev) and
/// chrome://tracing. Each rank is a process, each stream a row, and each task a complete event
/// ("X") with its label, bytes and kernels as arguments; a row "no task" holds work that belongs to
/// none. A message is an arrow ("s", "f") from the start of the task that sends it to the
/// end of the one that receives it, if both ranks are there, and a counter a graph ("C"). Times are
/// microseconds with three decimals, so exact. Process ids are rank + 1 and thread ids stream + 1,
/// because viewers treat 0 specially. Throws InternalError if tasks of one stream overlap: viewers
/// would drop them.
std::string chrome_trace_json(std::span<const Timeline> steps,
                              std::span<const TraceCounter> counters = {});

/// Writes `chrome_trace_json` to a file, replacing `path` atomically. Throws DataError if it cannot
/// be written.
void write_chrome_trace(const std::string& path, std::span<const Timeline> steps,
                        std::span<const TraceCounter> counters = {});

}  // namespace braid
