#pragma once

#include <vector>

#include "passes/assign_streams.h"
#include "passes/bulk_overlap.h"
#include "passes/comm_engine.h"
#include "passes/defer_head_wgrad.h"
#include "passes/delay_last_wgrad.h"
#include "passes/delay_wgrad.h"
#include "passes/fill_cooldown.h"
#include "passes/fuse_swiglu.h"
#include "passes/halve_forward.h"
#include "passes/offload.h"
#include "passes/p2p_streams.h"
#include "passes/pair_forward_backward.h"
#include "passes/pass.h"
#include "passes/prefetch_parameters.h"
#include "passes/recompute.h"
#include "passes/ring_exchange.h"
#include "passes/split_exchange.h"
#include "passes/split_ops.h"

namespace braid {

/// Options of the passes, one struct each.
struct PipelineOptions {
  RecomputeOptions recompute;
  OffloadOptions offload;
  SplitExchangeOptions split_exchange;
  HalveForwardOptions halve_forward;
  RingExchangeOptions ring_exchange;
  BulkOverlapOptions bulk_overlap;
  DelayWgradOptions delay_wgrad;
  DelayLastWgradOptions delay_last_wgrad;
  DeferHeadWgradOptions defer_head_wgrad;
  FillCooldownOptions fill_cooldown;
  PairForwardBackwardOptions pair_forward_backward;
  SplitOpsOptions split_ops;
  P2pStreamsOptions p2p_streams;
  PrefetchParametersOptions prefetch_parameters;
  AssignStreamsOptions assign_streams;
  CommEngineOptions comm_engine;
  FuseSwigluOptions fuse_swiglu;
};

/// All passes, in the order in which they must run: first what removes tasks, then what decides
/// what is kept from forward to backward, then what orders tasks, then what places them on streams,
/// then what makes one task of two, and last what turns the dependencies between streams into
/// events.
std::vector<Pass> default_pipeline(const PipelineOptions& options = {});

}  // namespace braid
