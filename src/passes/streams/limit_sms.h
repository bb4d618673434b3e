#pragma once

#include <map>

#include "passes/pass.h"

namespace braid {

struct LimitSmsOptions {
  std::map<GroupKind, int> comm_sms = {};  ///< of groups of a kind; others: NCCL chooses
  int product_margin = 0;                  ///< that matrix products leave free
};

/// Notes how many multiprocessors communication may take, and how many matrix products leave to it:
/// Group::max_sms of the groups of each kind, and Stream::left_sms of the compute streams.
///   before: stream compute kind=compute priority=0     group data kind=data ranks=0,1
///   after:  stream compute kind=compute priority=0 left_sms=16
///           group data kind=data ranks=0,1 max_sms=16
///
/// Counts groups and streams with a number. Sums of NCCL over other numbers of multiprocessors may
/// be rounded otherwise; they are the same in every run with the same numbers. Place: first,
/// because later passes go by prices. Source: num_sm and set_sm_margin of Transformer Engine's
/// userbuffers, max_ctas of Megatron-LM's communicators.
PassResult limit_sms(Program program, const LimitSmsOptions& options);

Pass limit_sms_pass(const PipelineOptions& options);

}  // namespace braid
