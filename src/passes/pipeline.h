#pragma once

#include <vector>

#include "passes/context/split_exchange.h"
#include "passes/gradients/delay_last_wgrad.h"
#include "passes/gradients/prefetch_parameters.h"
#include "passes/memory/offload.h"
#include "passes/memory/recompute.h"
#include "passes/pass.h"
#include "passes/pipeline/defer_head_wgrad.h"
#include "passes/pipeline/delay_wgrad.h"
#include "passes/pipeline/fill_cooldown.h"
#include "passes/pipeline/p2p_streams.h"
#include "passes/pipeline/pair_forward_backward.h"
#include "passes/streams/assign_streams.h"
#include "passes/streams/comm_engine.h"
#include "passes/tensor/bulk_overlap.h"
#include "passes/tensor/fuse_swiglu.h"
#include "passes/tensor/halve_forward.h"
#include "passes/tensor/ring_exchange.h"
#include "passes/tensor/split_ops.h"

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
