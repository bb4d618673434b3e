#include "passes/pipeline.h"

#include "passes/insert_events.h"
#include "passes/overlap_grad_reduce.h"
#include "passes/remove_identities.h"

namespace braid {

std::vector<Pass> default_pipeline(const PipelineOptions& options) {
  return {
      {.name = "remove_identities",
       .summary = "Removes all-reduces over one rank and copies of a range onto itself.",
       .run = [](Program program,
                 const PassContext&) { return remove_identities(std::move(program)); }},
      {.name = "overlap_grad_reduce",
       .summary = "Moves each gradient communication to where its gradient is ready, so that it "
                  "runs under the rest of the backward.",
       .run = [](Program program,
                 const PassContext&) { return overlap_grad_reduce(std::move(program)); }},
      {.name = "assign_streams",
       .summary = "Places communication on streams of its own, one per parallel dimension.",
       .run = [assign = options.assign_streams](
                  Program program,
                  const PassContext&) { return assign_streams(std::move(program), assign); }},
      {.name = "insert_events",
       .summary = "Turns dependencies between streams into as few events and waits as are needed.",
       .run = [](Program program, const PassContext&) { return insert_events(std::move(program)); },
       .why_required = "tasks of different streams would run unordered",
       .places_events = true},
  };
}

}  // namespace braid
