#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "parallel/parameter_layout.h"
#include "parallel/schedule.h"
#include "parallel/task_writer.h"

namespace braid {

/// A buffer that holds elements [range.begin, range.end) of a unit.
struct UnitBuffer {
  BufferId buffer;
  UnitRange range;

  /// Converts a range of the unit to a range of the buffer.
  BufferRange at(UnitRange part) const {
    return {buffer, part.begin - range.begin, part.end - range.begin};
  }
  BufferRange all() const { return at(range); }
};

struct UnitBufferOptions {
  DType dtype = DType::kF32;             ///< of weights whose domain has no dtype of its own
  DType main_grads_dtype = DType::kF32;  ///< of bf16 weights (OptimizerOptions)
  WeightGather weight_gather = WeightGather::kAfterUpdate;
  int64_t whole_units = 0;  ///< with kParameters: number of first buckets that stay unsharded
  std::vector<int64_t> shard_indices;  ///< parts of this rank, by domain (see `shard_indices()`)
  bool has_grads = true;               ///< false for a forward without backward
  bool fp8 = false;  ///< the program has FP8 products, so FP8 units are their main weights
  bool persistent_grads = false;  ///< keep main grads so that the host can read them
};

/// True if ranks hold more of the unit than they update, and the all-gather of the updated weights
/// runs at the unit's first use in the next step: until then, a rank has only its own part up to
/// date.
bool gathers_before_use(const ParameterLayout& layout, size_t unit, WeightGather weight_gather);

/// The flat buffers of a rank's units, and the tasks that move weights and gradients between the
/// ranks that hold copies or shards of them. Communication uses the groups of the unit's domain.
/// Sharded parameters are gathered at their first use in a job. If the job is the backward of the
/// forward just before it, units outside of layers (the head, tied embeddings) stay: the forward
/// ends and the backward begins with them. Sharded gradients are reduced at the end of each job. If
/// ranks hold weights whole but update shards, updated weights are gathered in place, after the
/// update or at their first use; those of the first `whole_units` after the update. Buffers per
/// unit: "params" in compute dtype, whole or this rank's shard (sharded parameters except the first
/// `whole_units`); "main_grads" in fp32 (f64 for f64) or bf16, whole or the shard (any sharding).
/// FP8 units have no weights in compute dtype except the first `whole_units`: they are main
/// weights, fp32, whole or the shard (any sharding), from which FP8 copies are made. Ranks with
/// shards gather the copies at their first use, in a job (sharded parameters) or in the step.
///
/// If ranks with the same shard share its update (ParameterDomain::splits_shards), main grads and
/// main weights are those of the rank's part. Once per step, the shard's gradient is
/// reduce-scattered over the replica group into main grads, and updated weights (or FP8 copies) are
/// first gathered over this group to the shard.
class UnitBuffers {
 public:
  /// The layout and the writer must outlive this object.
  UnitBuffers(TaskWriter& writer, const ParameterLayout& layout, const UnitBufferOptions& options);

  /// Elements of the unit that this rank updates.
  UnitRange owned(size_t unit) const { return owned_[unit]; }
  /// The shard that this rank holds: those elements, or more.
  UnitRange held(size_t unit) const;
  /// Dtype of `params`.
  DType dtype(size_t unit) const;
  /// Persistent weights: in compute dtype, or main weights if the unit has nothing else.
  const UnitBuffer& params(size_t unit) const { return params_[unit]; }
  /// True if `params` are main weights of an FP8 unit.
  bool has_only_main_weights(size_t unit) const;
  /// True if FP8 copies of `params` are those of its elements rounded to bf16.
  bool rounds_main_weights(size_t unit) const {
    return has_only_main_weights(unit) && compute_dtype(unit) == DType::kBF16;
  }
  /// True if training has main weights in a buffer of that name. fp32 weights are their own if the
  /// rank has exactly the elements that it owns.
  bool has_main_weights(size_t unit) const;
  /// True if ranks hold weights of which each updates only a part, so that an all-gather is needed.
  bool gathers_updated_weights(size_t unit) const;
  /// True if that all-gather runs at the unit's first use in a step instead of after its update.
  bool gathers_before_use(size_t unit) const;
  /// All-gathers all of `params` from the parts that the ranks own.
  void gather_updated_weights(size_t unit);
  /// True if ranks hold only shards of the unit's weights, which are gathered for each job.
  bool is_sharded(size_t unit) const;
  /// True if ranks gather FP8 copies of their shards of an FP8 unit.
  bool gathers_copies(size_t unit) const {
    return has_only_main_weights(unit) && domain(unit).shard != ShardKind::kNone;
  }
  /// From now on `weights` gathers `part`, the FP8 copy of the elements that this rank updates.
  void gather_copies(size_t unit, BufferId part) { fp8_parts_[unit] = part; }
  /// Dtype of all gradients.
  DType grads_dtype() const { return grads_dtype_; }
  /// The reduced gradient of the elements that this rank owns; complete after `finish_gradients`.
  const UnitBuffer& main_grads(size_t unit) const { return main_grads_[unit]; }

  /// `weights` and `gradient` must be called between these two, for that job.
  void begin_job(const Job& job);
  void end_job();
  /// Returns a buffer with the whole unit, or its FP8 copy by rows (`gather_copies`). Gathers it
  /// first if necessary.
  BufferId weights(size_t unit);
  /// Returns where the job writes the gradient of a slot, and true if this is the first write,
  /// which must overwrite.
  std::pair<BufferRange, bool> gradient(const ParameterSlot& slot);

  /// Adds the reductions that remain after all jobs, over all groups that hold addends: data and
  /// context ranks (or ranks with the same experts), then replicas of the shards, then partial sums
  /// of tensor ranks, then tied embeddings.
  void finish_gradients(bool shares_tied_embedding);

  Label label(size_t unit, Phase phase);

 private:
  /// Gradient of one unit from one microbatch of a virtual stage, until it is reduced.
  struct JobGradient {
    BufferId buffer;
    std::set<int64_t> written;  // slots, by their begin
  };
  using JobGradientKey = std::tuple<size_t, int32_t, int32_t>;  // unit, microbatch, virtual stage

  const ParameterDomain& domain(size_t unit) const { return layout_.domain_of(unit); }
  bool shards_gradients(size_t unit) const { return domain(unit).shard >= ShardKind::kGradients; }
  DType compute_dtype(size_t unit) const;
  void add_params();
  BufferId gathered(size_t unit, BufferId source);
  /// The FP8 copy of this rank's shard; gathers it first if ranks have parts of it.
  BufferId fp8_shard(size_t unit);
  void add_main_grads();
  void zero_gaps(size_t unit, BufferId buffer);
  void zero_slots_but(size_t unit, BufferId buffer, const std::set<int64_t>& written);
  struct Scatter {
    BufferRange whole;
    BufferRange part;
    std::string_view group;
    std::string name;  // of its buffers
    bool accumulates = false;
  };
  /// Reduce-scatters `whole` into `part`, in the dtype of the reduction.
  void scatter(size_t unit, const Scatter& to);
  /// All-reduces the main grads of a unit over ranks that hold the same elements, in the dtype of
  /// the reduction.
  void all_reduce(size_t unit, std::string_view group);
  void reduce_partial_sums(size_t unit);

  TaskWriter& writer_;
  const ParameterLayout& layout_;
  UnitBufferOptions options_;
  DType grads_dtype_;
  std::vector<UnitRange> owned_;
  std::vector<UnitBuffer> params_;
  std::vector<UnitBuffer> main_grads_;
  std::vector<UnitBuffer> shard_grads_;  // by unit: of the shard; main_grads_ if that is all
  std::vector<BufferId> whole_grads_;    // by unit: where gradients are accumulated whole
  std::set<std::pair<size_t, int64_t>> written_;  // unit and begin of the written slots of
                                                  // whole_grads_
  std::map<JobGradientKey, JobGradient> job_grads_;
  std::vector<bool> has_main_grads_;  // by unit: the shard has been written
  Job job_;
  std::map<size_t, BufferId> gathered_;  // by unit: gathered weights of this job, or of the step
  std::map<size_t, BufferId> fp8_parts_;
  std::map<size_t, BufferId> fp8_shards_;  // gathered from the parts of replicas
  std::set<size_t> is_up_to_date_;         // units that this program has gathered before use
};

}  // namespace braid
