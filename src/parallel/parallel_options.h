#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "model/stage_slice.h"
#include "ops/context_attention.h"
#include "parallel/schedule.h"

namespace braid {

/// What the ranks that compute gradients of the same weights (data x context) hold in parts instead
/// of copies, besides what comes before. Source: Rajbhandari et al., ZeRO, 2020: stages 0 to 3.
enum class ShardKind : uint8_t {
  kNone,
  kOptimizer,   ///< main weights and optimizer state; gradients are reduced once per step
  kGradients,   ///< main grads too; gradients are reduced after each microbatch
  kParameters,  ///< weights too; they are gathered before each use
};

/// When weights that ranks have updated in parts (kOptimizer, kGradients) are gathered. Results are
/// the same; what differs is which compute of the step can hide it.
enum class WeightGather : uint8_t {
  kAfterUpdate,       ///< each unit directly behind its update, under that of the units behind it
  kBeforeUse,         ///< in the next step (or evaluation), in front of the first use of each unit;
                      ///< until then each rank has only its own part of the new weights
  kFirstAfterUpdate,  ///< the first unit of a rank, with which a step begins, behind its update;
                      ///< all others before their use
};

/// What becomes one unit, that is, one flat buffer that is gathered, reduced and updated as a
/// whole.
enum class BucketKind : uint8_t {
  kLayer,         ///< a layer
  kVirtualStage,  ///< all layers of a virtual stage
  kBytes,         ///< consecutive layers of a virtual stage until they have `bucket_bytes` of fp32
};

struct BucketOptions {
  BucketKind kind = BucketKind::kLayer;
  int64_t bucket_bytes = 0;
};

/// How a step is laid out over the ranks of a mesh, besides the mesh's sizes.
struct ParallelOptions {
  bool sequence_parallel = false;
  ContextMethod context_method = ContextMethod::kRing;  ///< between outer context ranks
  ScheduleKind schedule = ScheduleKind::kOneForwardOneBackward;
  int virtual_stages = 1;
  int64_t group_size = 0;            ///< microbatches per group of the interleaved schedule; 0: the
                                     ///< pipeline ranks
  JobPairs pairs = JobPairs::kNone;  ///< neighbours that may be woven
  std::vector<StageSlice> stages;    ///< by global stage; empty: one stage of the whole model
  ShardKind shard = ShardKind::kNone;
  ShardKind expert_shard = ShardKind::kNone;  ///< of what ranks that hold the same experts share
  BucketOptions buckets;
  WeightGather weight_gather = WeightGather::kAfterUpdate;
  int64_t whole_units = 0;  ///< with kParameters: first units of a rank that it holds whole all the
                            ///< same, and gathers behind their update
  DType reduce_dtype = DType::kF32;  ///< of gradients between data and context ranks; kF32 or kBF16
};

}  // namespace braid
