#pragma once

#include <span>
#include <string>

#include "trace/timeline.h"

namespace braid {

/// Steps as Chrome trace events, one step after the other, for Perfetto (ui.perfetto.dev) and
/// chrome://tracing. Each rank is a process, each stream a row, and each task a complete event
/// ("X") with its label, bytes and kernels as arguments; a row "no task" holds work that belongs to
/// none. Times are microseconds with three decimals, so exact. Process ids are rank + 1 and thread
/// ids stream + 1, because viewers treat 0 specially. Throws InternalError if tasks of one stream
/// overlap: viewers would drop them.
std::string chrome_trace_json(std::span<const Timeline> steps);

/// Writes `chrome_trace_json` to a file, replacing `path` atomically. Throws DataError if it cannot
/// be written.
void write_chrome_trace(const std::string& path, std::span<const Timeline> steps);

}  // namespace braid
