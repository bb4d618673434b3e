#include "passes/streams/limit_sms.h"

#include <utility>

#include "base/text.h"
#include "config/run_config.h"
#include "passes/pipeline_options.h"

namespace braid {

PassResult limit_sms(Program program, const SmBudget& budget) {
  int64_t limited = 0;
  for (Group& group : program.groups) {
    const auto found = budget.comm_sms.find(group.kind);
    if (found != budget.comm_sms.end()) {
      group.max_sms = found->second;
      ++limited;
    }
  }
  int64_t leaving = 0;
  for (Stream& stream : program.streams) {
    if (stream.kind == StreamKind::kCompute && budget.product_margin > 0) {
      stream.left_sms = budget.product_margin;
      ++leaving;
    }
  }
  return {.program = std::move(program),
          .report = {.changed = limited + leaving > 0,
                     .num_changes = limited + leaving,
                     .summary = fmt::format("limited {} groups; products leave {} multiprocessors",
                                            limited, leaving > 0 ? budget.product_margin : 0)}};
}

Pass limit_sms_pass(const PipelineOptions& options) {
  return {
      .name = "limit_sms",
      .summary = "Limits the multiprocessors of communication, and of products beside it.",
      .run = run_of(limit_sms, options),
      .keys = {"overlap.comm_sms", "overlap.product_sm_margin"},
      .read_keys = [](const OverlapConfig& overlap,
                      PipelineOptions& its) { its.of<SmBudget>() = sm_budget(overlap); },
      .is_wanted = [](const OverlapConfig& overlap) { return sm_budget(overlap) != SmBudget(); },
      .reads_keys_in_every_mode = true};
}

}  // namespace braid
