#include "plan/overlap_setup.h"

#include <algorithm>

#include "base/errors.h"
#include "config/tensor_sites.h"
#include "plan/choices.h"

namespace braid {
namespace {

OverlapMethod method_called(const std::string& name) {
  for (const OverlapMethod method : {OverlapMethod::kNone, OverlapMethod::kBulk,
                                     OverlapMethod::kRing, OverlapMethod::kChunked}) {
    if (overlap_method_name(method) == name) {
      return method;
    }
  }
  throw_internal_error("no overlap method is called {}", name);
}

SiteOverlaps site_overlaps(const OverlapConfig& overlap) {
  SiteOverlaps sites;
  for (const TensorSiteChoice& choice : tensor_site_choices(overlap)) {
    sites[choice.site] = {method_called(choice.method), choice.splits};
  }
  return sites;
}

/// A product that is cut up may have other bits.
bool splits_products(const OverlapConfig& overlap) {
  const SiteOverlaps sites = site_overlaps(overlap);
  return overlap.tp_comm_overlap && std::ranges::any_of(sites, [](const auto& site) {
           return site.second.method == OverlapMethod::kRing ||
                  site.second.method == OverlapMethod::kChunked;
         });
}

PipelineOptions manual_options(const OverlapConfig& overlap) {
  PipelineOptions options;
  options.delay_wgrad = {.num_layers = overlap.overlap_p2p_wgrad_delayed_layer_number,
                         .whole_layers = overlap.overlap_p2p_with_transformer_layer_wgrad};
  options.delay_last_wgrad = {.num_layers = overlap.overlap_grad_reduce_delayed_wgrad_layers};
  options.defer_head_wgrad = {.enabled = overlap.defer_embedding_wgrad_compute,
                              .limit = overlap.wgrad_deferral_limit};
  options.fill_cooldown.enabled = overlap.fill_cooldown;
  // Gathers at their use still go to a stream of their own, which that of gradients needs: both are
  // calls of one communicator.
  options.prefetch_parameters = {
      .units = overlap.overlap_param_gather ? overlap.param_gather_prefetch_units : 0,
      .aligns = overlap.align_param_gather};
  options.p2p_streams = {.enabled = overlap.overlap_p2p_comm,
                         .warmup_flush = overlap.overlap_p2p_comm_warmup_flush,
                         .backward_on_comm_stream = overlap.overlap_p2p_backward_on_comm_stream};
  options.ring_exchange = {.sites = site_overlaps(overlap),
                           .min_rows = overlap.tp_comm_overlap_min_rows};
  options.split_exchange.enabled = overlap.split_ops;
  options.bulk_overlap.sites = options.ring_exchange.sites;
  options.split_ops = {.enabled = overlap.split_ops, .min_rows = overlap.tp_comm_overlap_min_rows};
  return options;
}

std::vector<std::string> not_asked_for(const OverlapConfig& overlap) {
  std::vector<std::string> names;
  if (!overlap.overlap_grad_reduce) {
    names.emplace_back("overlap_grad_reduce");
  }
  if (!overlap.overlap_context_comm) {
    names.emplace_back("context_ring");
    names.emplace_back("delay_context_wgrad");
  }
  if (!overlap.tp_comm_overlap) {
    names.emplace_back("ring_exchange");
    names.emplace_back("bulk_overlap");
  }
  return names;
}

WeightGather manual_gather(const OverlapConfig& overlap) {
  return !overlap.overlap_param_gather                      ? WeightGather::kAfterUpdate
         : overlap.overlap_param_gather_with_optimizer_step ? WeightGather::kFirstAfterUpdate
                                                            : WeightGather::kBeforeUse;
}

/// What is hidden is known when all ranks are planned: until then, as if left to the costs.
CommEngine engine_of(EngineChoice choice) {
  switch (choice) {
    case EngineChoice::kCopy:
      return CommEngine::kCopy;
    case EngineChoice::kSm:
      return CommEngine::kSm;
    case EngineChoice::kNcclCopy:
      return CommEngine::kNcclCopy;
    case EngineChoice::kAuto:
    case EngineChoice::kHidden:
      return CommEngine::kAuto;
  }
  throw_internal_error("no engine");
}

OverlapSetup setup_of_mode(const OverlapConfig& overlap) {
  const auto mode = choice<OverlapMode>(overlap.mode);
  if (mode == OverlapMode::kManual) {
    return {.options = manual_options(overlap),
            .disabled_passes = not_asked_for(overlap),
            .context = {.may_change_rounding = splits_products(overlap) || overlap.split_ops ||
                                               halves_forwards(overlap)}};
  }
  if (mode == OverlapMode::kOff) {
    // Without streams of its own, communication stays between the compute tasks.
    return {.options = {},
            .disabled_passes = {"ring_exchange", "delay_wgrad", "delay_last_wgrad",
                                "defer_head_wgrad", "fill_cooldown", "delay_context_wgrad",
                                "bulk_overlap", "overlap_grad_reduce", "prefetch_parameters",
                                "context_ring", "p2p_streams", "assign_streams"}};
  }
  return {.options = {},
          .disabled_passes = {},
          .context = {.may_change_rounding = overlap.may_change_rounding}};
}

}  // namespace

WeightGather weight_gather(const OverlapConfig& overlap) {
  switch (choice<OverlapMode>(overlap.mode)) {
    case OverlapMode::kOff:
      return WeightGather::kAfterUpdate;
    case OverlapMode::kManual:
      return manual_gather(overlap);
    case OverlapMode::kAuto:
      return WeightGather::kFirstAfterUpdate;
  }
  throw_internal_error("no overlap mode");
}

bool halves_forwards(const OverlapConfig& overlap) {
  return choice<PairKind>(overlap.pair_forward_backward) == PairKind::kForwardHalves;
}

JobPairs job_pairs(const OverlapConfig& overlap) {
  switch (choice<PairKind>(overlap.pair_forward_backward)) {
    case PairKind::kForwardBackward:
      return JobPairs::kForwardBackward;
    case PairKind::kHalves:
      return JobPairs::kHalves;
    case PairKind::kNone:
    case PairKind::kForwardHalves:
      return JobPairs::kNone;
  }
  throw_internal_error("no pairs");
}

OverlapSetup overlap_setup(const OverlapConfig& overlap) {
  OverlapSetup setup = setup_of_mode(overlap);
  setup.options.comm_engine.engine = engine_of(choice<EngineChoice>(overlap.comm_engine));
  return setup;
}

}  // namespace braid
