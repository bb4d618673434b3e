#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model_spec.h"
#include "plan/run_plan.h"
#include "runtime/routing_file.h"
#include "runtime/routing_source.h"

namespace braid {

/// The layers of a model whose routers choose experts, ascending; those of multi-token prediction
/// come last (mtp_layer_number).
std::vector<int32_t> router_layers(const ModelSpec& model);

/// The tokens whose experts a rank chooses in a microbatch, in the order of its rows: tensor ranks
/// share those of a context rank.
std::vector<TokenRun> routed_tokens(const RunSpec& run, int rank, int64_t microbatch);

/// The buffer "routing" of a rank's training step (parallel/step_program.h): i32 [routers, M, T K].
class RankRouting {
 public:
  RankRouting(const RunPlan& plan, int rank);

  /// Fills it with the experts of a step.
  void fill(const RoutingSource& source, int64_t step, std::span<int32_t> routing) const;
  /// Records it as a step, which counts from the first of the file.
  void record(const RoutingRecord& file, int64_t step, std::span<const int32_t> routing) const;
  /// Rows that come to a rank if all ranks that exchange rows route as this one, beside those of
  /// equal loads: for each router and microbatch. 1 without such ranks.
  std::vector<double> loads(std::span<const int32_t> routing) const;

 private:
  /// Calls `visit(router, run, begin)` for the part of the buffer of each run of tokens, which
  /// begins there.
  void for_each_run(const auto& visit) const;

  int64_t experts_ = 1;
  int64_t per_token_ = 1;
  int64_t expert_parts_ = 1;                   // ranks with different experts
  int64_t expert_part_ = 0;                    // of them this one
  std::vector<int64_t> routers_;               // in the order of the buffer
  std::vector<std::vector<TokenRun>> tokens_;  // by microbatch
};

}  // namespace braid
