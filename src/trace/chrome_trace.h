#pragma once

#include <span>
#include <string>

#include "trace/timeline.h"

namespace braid {

/// Steps as Chrome trace events, one step after the other, which Perfetto (ui.perfetto.dev) and
/// chrome://tracing open: a process per rank, a row per stream, a complete event ("X") per task,
/// with its label, bytes and kernels as arguments, and a row "no task" for work that belongs to
/// none. Times are microseconds with three decimals, so exact. Process ids are rank + 1 and thread
/// ids stream + 1, because viewers give 0 a meaning of its own. Throws InternalError if tasks of
/// one stream overlap: viewers would drop them.
std::string chrome_trace_json(std::span<const Timeline> steps);

/// `chrome_trace_json` as a file that replaces `path` atomically. Throws DataError if it cannot be
/// written.
void write_chrome_trace(const std::string& path, std::span<const Timeline> steps);

}  // namespace braid
