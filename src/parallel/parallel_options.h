#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "model/stage_slice.h"
#include "ops/context_attention.h"
#include "ops/context_sections.h"
#include "parallel/schedule.h"

namespace braid {

/// What the ranks that compute gradients of the same weights (data x context) hold as shards
/// instead of copies. Each kind includes the previous ones. Source: Rajbhandari et al., ZeRO, 2020:
/// stages 0 to 3.
enum class ShardKind : uint8_t {
  kNone,
  kOptimizer,   ///< main weights and optimizer state; gradients are reduced once per step
  kGradients,   ///< main grads too; gradients are reduced after each microbatch
  kParameters,  ///< weights too; they are gathered before each use
};

/// When to all-gather weights that ranks update in shards (kOptimizer, kGradients). Results are the
/// same. The choice decides which compute can hide the all-gather.
enum class WeightGather : uint8_t {
  kAfterUpdate,  ///< directly after the update of each unit; the updates of later units can hide it
  kBeforeUse,  ///< in the next step (or evaluation), before the first use of each unit; until then
               ///< each rank has only its shard of the new weights
  kFirstAfterUpdate,  ///< after its update for a rank's first unit, which the next step uses first;
                      ///< before its first use for every other unit
};

/// Which parameters form one unit. A unit is one flat buffer that is gathered, reduced and updated
/// as a whole.
enum class BucketKind : uint8_t {
  kLayer,         ///< a layer
  kVirtualStage,  ///< all layers of a virtual stage
  kBytes,         ///< consecutive layers of a virtual stage until they have `bucket_bytes` in fp32
};

struct BucketOptions {
  BucketKind kind = BucketKind::kLayer;
  int64_t bucket_bytes = 0;
};

/// Parameters that are updated in another way than the others. Patterns are names, with * and ? for
/// any characters.
struct ParameterGroups {
  std::vector<std::string> no_decay;
  std::vector<std::pair<std::string, double>> rates;  ///< factors of the learning rate; the first
                                                      ///< pattern that fits counts
};

/// How a step is distributed over the ranks of a mesh.
struct ParallelOptions {
  bool sequence_parallel = false;
  ContextMethod context_method = ContextMethod::kRing;  ///< between outer context ranks
  MambaContext mamba_context = MambaContext::kHeads;
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  int virtual_stages = 1;
  int64_t group_size = 0;  ///< microbatches per group of the interleaved schedule; 0: number of
                           ///< pipeline ranks
  JobPairs pairs = JobPairs::kNone;  ///< neighbouring jobs that a pass may interleave
  std::vector<StageSlice> stages;    ///< by global stage; empty: one stage with the whole model
  ShardKind shard = ShardKind::kNone;
  ShardKind expert_shard = ShardKind::kNone;  ///< for state shared by ranks that hold the same
                                              ///< experts
  /// Ranks that hold the same shard share its main weights, optimizer state and update.
  bool shard_over_replicas = false;
  double expert_capacity = 0.0;  ///< ExpertShard::capacity
  bool drops_rows = false;       ///< ExpertShard::drops
  bool blocks_of_rows = false;   ///< ExpertShard::blocks
  BucketOptions buckets;
  WeightGather weight_gather = WeightGather::kAfterUpdate;
  int64_t whole_units = 0;  ///< with kParameters: number of first buckets of a rank that stay
                            ///< unsharded and are gathered after their update
  DType reduce_dtype = DType::kF32;  ///< of gradient reductions over data and context ranks; kF32
                                     ///< or kBF16
  ParameterGroups groups = {};
  /// Muon updates matrices of layers, which form units of their own, because they keep one moment.
  bool muon = false;
  /// Weights that nothing but FP8 products reads. They form units of their own, because in a step
  /// with FP8 products a rank has only its main weights of them and FP8 copies.
  std::set<std::string> fp8_weights = {};
};

}  // namespace braid
