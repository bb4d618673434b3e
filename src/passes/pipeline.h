#pragma once

#include <vector>

#include "passes/assign_streams.h"
#include "passes/pass.h"

namespace braid {

/// Options of the passes, one struct each.
struct PipelineOptions {
  AssignStreamsOptions assign_streams;
};

/// All passes, in the order in which they must run: first what removes tasks, then what orders
/// them, then what places them on streams, and last what turns the dependencies between streams
/// into events.
std::vector<Pass> default_pipeline(const PipelineOptions& options = {});

}  // namespace braid
