#include "passes/pipeline.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <string>

#include "base/errors.h"
#include "base/text.h"
#include "passes/context/context_ring.h"
#include "passes/context/cut_exchanges.h"
#include "passes/context/delay_context_wgrad.h"
#include "passes/context/split_exchange.h"
#include "passes/gradients/delay_last_wgrad.h"
#include "passes/gradients/overlap_grad_reduce.h"
#include "passes/gradients/prefetch_parameters.h"
#include "passes/memory/offload.h"
#include "passes/memory/recompute.h"
#include "passes/pipeline/defer_head_wgrad.h"
#include "passes/pipeline/delay_wgrad.h"
#include "passes/pipeline/fill_cooldown.h"
#include "passes/pipeline/p2p_streams.h"
#include "passes/pipeline/pair_forward_backward.h"
#include "passes/remove_identities.h"
#include "passes/schedule/schedule_step.h"
#include "passes/streams/assign_streams.h"
#include "passes/streams/comm_engine.h"
#include "passes/streams/insert_events.h"
#include "passes/streams/limit_sms.h"
#include "passes/tensor/bulk_overlap.h"
#include "passes/tensor/fuse_swiglu.h"
#include "passes/tensor/halve_forward.h"
#include "passes/tensor/ring_exchange.h"
#include "passes/tensor/split_ops.h"

namespace braid {
namespace {

/// The list of braid itself.
std::vector<Pass> own_passes(const PipelineOptions& options) {
  return {
      // First: later passes go by prices, which depend on it.
      limit_sms_pass(options),
      // Before all that moves tasks: it looks for exchanges as they are built, three in a row.
      cut_exchanges_pass(),
      remove_identities_pass(),
      recompute_pass(options),
      // After recompute: recomputed values need not be offloaded.
      offload_pass(options),
      // After passes that need whole activations.
      split_exchange_pass(options),
      // After passes that need whole activations, before ring_exchange, which handles each half.
      halve_forward_pass(options),
      // After recompute, which decides what is gathered again.
      ring_exchange_pass(options),
      // Before overlap_grad_reduce: a reduction follows the weight gradients that it needs.
      delay_wgrad_pass(options),
      delay_last_wgrad_pass(options),
      defer_head_wgrad_pass(options),
      fill_cooldown_pass(options),
      // After passes that move weight gradients out of their jobs.
      delay_context_wgrad_pass(),
      // After passes that move weight gradients, before passes that do not change streams.
      bulk_overlap_pass(options),
      // After passes that order tasks within a job, before passes that use the order of jobs'
      // tasks.
      pair_forward_backward_pass(options),
      // After passes that decide what runs beside what, before passes that depend on where
      // gradients are ready.
      split_ops_pass(options),
      overlap_grad_reduce_pass(options),
      // After overlap_grad_reduce: its reductions and the gathers share one stream.
      prefetch_parameters_pass(options),
      context_ring_pass(),
      // After all passes that move tasks within jobs: it looks for the beginnings of jobs.
      p2p_streams_pass(options),
      assign_streams_pass(options),
      // After passes that look for reductions, which it may split.
      comm_engine_pass(options),
      // After the passes that expect products and activations as two tasks: nearly all.
      fuse_swiglu_pass(options),
      insert_events_pass(),
      // Over all ranks at once. list_schedule uses the engines that it has chosen itself.
      list_schedule_pass(options),
      choose_engines_pass(options),
  };
}

/// A pass added by a program that links braid.
struct Addition {
  uint64_t id = 0;
  MakePass make;
  PassSide side = PassSide::kAfter;
  std::string neighbour;
};

class Additions {
 public:
  uint64_t add(Addition addition) {
    const std::lock_guard lock(mutex_);
    addition.id = ++last_id_;
    additions_.push_back(std::move(addition));
    return last_id_;
  }

  void remove(uint64_t id) {
    const std::lock_guard lock(mutex_);
    std::erase_if(additions_, [&](const Addition& it) { return it.id == id; });
  }

  std::vector<Addition> all() const {
    const std::lock_guard lock(mutex_);
    return additions_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Addition> additions_;
  uint64_t last_id_ = 0;
};

Additions& additions() {
  static Additions all;
  return all;
}

void check_has_one_run(const Pass& pass) {
  if (static_cast<bool>(pass.run) == static_cast<bool>(pass.run_all)) {
    throw_config_error("pass {}: must have one of `run` and `run_all`", quote(pass.name));
  }
}

void insert(Pass pass, const Addition& addition, std::vector<Pass>& passes) {
  check_has_one_run(pass);
  std::vector<std::string_view> names;
  std::ranges::transform(passes, std::back_inserter(names), &Pass::name);
  const auto place = std::ranges::find(names, addition.neighbour) - names.begin();
  if (place == std::ssize(names)) {
    throw_config_error("cannot add pass {} beside {}: there is no such pass (there are {}){}",
                       quote(pass.name), quote(addition.neighbour), join(names, ", "),
                       did_you_mean(addition.neighbour, names));
  }
  if (std::ranges::find(names, pass.name) != names.end()) {
    throw_config_error("cannot add pass {}: there is one of that name", quote(pass.name));
  }
  passes.insert(passes.begin() + place + (addition.side == PassSide::kAfter ? 1 : 0),
                std::move(pass));
  const auto is_over_all = [](const Pass& it) { return static_cast<bool>(it.run_all); };
  if (!std::ranges::is_partitioned(passes, std::not_fn(is_over_all))) {
    throw_config_error(
        "cannot add a pass {} {}: passes over all ranks run behind those over one rank",
        addition.side == PassSide::kAfter ? "after" : "before", quote(addition.neighbour));
  }
}

std::vector<Pass> keep_if(std::vector<Pass> passes, bool over_all) {
  std::erase_if(passes,
                [&](const Pass& pass) { return static_cast<bool>(pass.run_all) != over_all; });
  return passes;
}

}  // namespace

std::vector<Pass> default_pipeline(const PipelineOptions& options) {
  std::vector<Pass> passes = own_passes(options);
  for (const Addition& addition : additions().all()) {
    insert(addition.make(options), addition, passes);
  }
  return passes;
}

std::vector<Pass> rank_passes(std::vector<Pass> passes) {
  return keep_if(std::move(passes), false);
}

std::vector<Pass> all_ranks_passes(std::vector<Pass> passes) {
  return keep_if(std::move(passes), true);
}

AddedPass add_pass(const MakePass& make, PassSide side, std::string_view neighbour) {
  const Addition addition{.make = make, .side = side, .neighbour = std::string(neighbour)};
  std::vector<Pass> passes = default_pipeline();
  insert(make({}), addition, passes);  // throws here and not when a run is planned
  return AddedPass(additions().add(addition));
}

AddedPass::~AddedPass() {
  additions().remove(id_);
}

}  // namespace braid
