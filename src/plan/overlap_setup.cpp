#include "plan/overlap_setup.h"

#include "config/choices.h"

namespace braid {
namespace {

bool is_manual(const OverlapConfig& overlap) {
  return choice<OverlapMode>(overlap.mode) == OverlapMode::kManual;
}

bool is_off(const OverlapConfig& overlap) {
  return choice<OverlapMode>(overlap.mode) == OverlapMode::kOff;
}

bool counts_keys(const Pass& pass, const OverlapConfig& overlap) {
  return pass.reads_keys_in_every_mode || is_manual(overlap);
}

/// Whether a key turns on a pass that may change rounding.
bool asks_for_rounding(const Pass& pass, const OverlapConfig& overlap) {
  return pass.changes_rounding && pass.is_wanted && is_manual(overlap) && pass.is_wanted(overlap);
}

WeightGather manual_gather(const OverlapConfig& overlap) {
  return !overlap.overlap_param_gather                      ? WeightGather::kAfterUpdate
         : overlap.overlap_param_gather_with_optimizer_step ? WeightGather::kFirstAfterUpdate
                                                            : WeightGather::kBeforeUse;
}

}  // namespace

WeightGather weight_gather(const OverlapConfig& overlap) {
  return is_off(overlap)      ? WeightGather::kAfterUpdate
         : is_manual(overlap) ? manual_gather(overlap)
                              : WeightGather::kFirstAfterUpdate;
}

bool is_asked_for(const Pass& pass, const OverlapConfig& overlap) {
  return counts_keys(pass, overlap) && pass.is_wanted && pass.is_wanted(overlap);
}

bool is_on(const Pass& pass, const OverlapConfig& overlap) {
  if (is_off(overlap) && pass.only_overlaps) {
    return false;
  }
  return !counts_keys(pass, overlap) || !pass.is_wanted || pass.is_wanted(overlap);
}

OverlapSetup overlap_setup(const OverlapConfig& overlap) {
  OverlapSetup setup;
  setup.context.may_change_rounding = !is_manual(overlap) && overlap.may_change_rounding;
  for (const Pass& pass : default_pipeline()) {
    if (pass.read_keys && counts_keys(pass, overlap)) {
      pass.read_keys(overlap, setup.options);
    }
    if (pass.run && !is_on(pass, overlap)) {
      setup.disabled_passes.emplace_back(pass.name);
    }
    setup.context.may_change_rounding |= asks_for_rounding(pass, overlap);
  }
  return setup;
}

}  // namespace braid
