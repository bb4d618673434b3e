#include "passes/streams/limit_sms.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "config/sm_budget.h"
#include "passes/pipeline_options.h"

namespace braid {
namespace {

LimitSmsOptions options_of(const OverlapConfig& overlap) {
  const std::map<std::string_view, int> by_name = comm_sms_by_kind(overlap);
  LimitSmsOptions options{.product_margin = static_cast<int>(overlap.product_sm_margin)};
  for (const GroupKind kind : {GroupKind::kData, GroupKind::kTensor, GroupKind::kPipeline,
                               GroupKind::kContext, GroupKind::kExpert, GroupKind::kWorld}) {
    if (const auto found = by_name.find(group_kind_name(kind)); found != by_name.end()) {
      options.comm_sms.emplace(kind, found->second);
    }
  }
  return options;
}

}  // namespace

PassResult limit_sms(Program program, const LimitSmsOptions& options) {
  int64_t limited = 0;
  for (Group& group : program.groups) {
    const auto found = options.comm_sms.find(group.kind);
    if (found != options.comm_sms.end() && group.max_sms != found->second) {
      group.max_sms = found->second;
      ++limited;
    }
  }
  int64_t leaving = 0;
  for (Stream& stream : program.streams) {
    if (stream.kind == StreamKind::kCompute && stream.left_sms != options.product_margin) {
      stream.left_sms = options.product_margin;
      ++leaving;
    }
  }
  return {.program = std::move(program),
          .report = {.changed = limited + leaving > 0,
                     .num_changes = limited + leaving,
                     .summary = fmt::format("limited {} groups; products leave {} multiprocessors",
                                            limited, leaving > 0 ? options.product_margin : 0)}};
}

Pass limit_sms_pass(const PipelineOptions& options) {
  return {
      .name = "limit_sms",
      .summary = "Limits the multiprocessors of communication, and of products beside it.",
      .run = run_of(limit_sms, options),
      .keys = {"overlap.comm_sms", "overlap.product_sm_margin"},
      .read_keys = [](const OverlapConfig& overlap,
                      PipelineOptions& its) { its.of<LimitSmsOptions>() = options_of(overlap); },
      .reads_keys_in_every_mode = true};
}

}  // namespace braid
