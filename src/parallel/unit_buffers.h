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

  /// Elements of the unit as elements of the buffer.
  BufferRange at(UnitRange part) const {
    return {buffer, part.begin - range.begin, part.end - range.begin};
  }
  BufferRange all() const { return at(range); }
};

struct UnitBufferOptions {
  DType dtype = DType::kF32;  ///< of weights, where their domain has none of its own
  WeightGather weight_gather = WeightGather::kAfterUpdate;
  int64_t whole_units = 0;  ///< with kParameters: first units that are whole all the same
  std::vector<int64_t> shard_indices;  ///< of this rank, by domain (`shard_indices`)
  bool has_grads = true;               ///< false for a forward without backward
  bool persistent_grads = false;       ///< main grads stay for the host to read
};

/// The flat buffers of a rank's units and what moves weights and gradients between the ranks that
/// hold copies or shards of them, in the groups of the units' domains. With sharded parameters,
/// weights are gathered at their first use in a job; with sharded gradients, each job's gradients
/// are reduced when it ends. Updated weights of ranks that hold them whole are gathered in place,
/// behind the update or at their first use; those of the `whole_units` behind the update. Buffers
/// by unit: "params" in compute dtype, whole or (sharded parameters but for `whole_units`) this
/// rank's shard; "main_grads" in fp32 (f64 for f64), whole or (any sharding) the shard.
class UnitBuffers {
 public:
  /// The layout and the writer must outlive this.
  UnitBuffers(TaskWriter& writer, const ParameterLayout& layout, const UnitBufferOptions& options);

  /// Elements of the unit that this rank updates.
  UnitRange owned(size_t unit) const { return owned_[unit]; }
  /// Of the unit's weights.
  DType dtype(size_t unit) const;
  /// Persistent weights in compute dtype.
  const UnitBuffer& params(size_t unit) const { return params_[unit]; }
  /// Whether ranks hold the whole unit and update parts of it, which must be gathered.
  bool gathers_updated_weights(size_t unit) const;
  /// Whether that is done at the unit's first use in a step, and not behind its update.
  bool gathers_before_use(size_t unit) const;
  /// From the part of `params` that this rank owns to all of it.
  void gather_updated_weights(size_t unit);
  /// The reduced gradient of what this rank owns; complete after `finish_gradients`.
  const UnitBuffer& main_grads(size_t unit) const { return main_grads_[unit]; }

  /// Between these, `weights` and `gradient` serve one job.
  void begin_job(const Job& job);
  void end_job();
  /// Where the whole unit can be read, gathered before if need be.
  BufferId weights(size_t unit);
  /// Where the job's gradient of a slot goes, and whether it is the first to be written there, so
  /// that it must overwrite.
  std::pair<BufferRange, bool> gradient(const ParameterSlot& slot);

  /// Reduces what the jobs have left unreduced, over all groups that hold addends: data and context
  /// ranks (or those with the same experts), then copies of the shards, then partial sums of tensor
  /// ranks, then tied embeddings.
  void finish_gradients(bool shares_tied_embedding);

  Label label(size_t unit, Phase phase);

 private:
  /// The gradient of one unit in one microbatch of a virtual stage, until it is reduced.
  struct JobGradient {
    BufferId buffer;
    std::set<int64_t> written;  // slots by their begin
  };
  using JobGradientKey = std::tuple<size_t, int32_t, int32_t>;  // unit, microbatch, virtual stage

  const ParameterDomain& domain(size_t unit) const { return layout_.domain_of(unit); }
  bool is_sharded(size_t unit) const;
  bool shards_gradients(size_t unit) const { return domain(unit).shard >= ShardKind::kGradients; }
  void add_params();
  void add_main_grads();
  void zero_gaps(size_t unit, BufferId buffer);
  void zero_slots_but(size_t unit, BufferId buffer, const std::set<int64_t>& written);
  /// Sums `whole` over the ranks of the shard group into `part`, in the dtype of reduction.
  void scatter(size_t unit, BufferRange whole, BufferRange part, bool accumulate,
               const std::string& name);
  /// The same for a unit whose gradients all ranks hold whole.
  void all_reduce(size_t unit);
  void reduce_partial_sums(size_t unit);

  TaskWriter& writer_;
  const ParameterLayout& layout_;
  UnitBufferOptions options_;
  DType accumulator_;
  std::vector<UnitRange> owned_;
  std::vector<UnitBuffer> params_;
  std::vector<UnitBuffer> main_grads_;
  std::vector<BufferId> whole_grads_;             // where gradients are accumulated whole, by unit
  std::set<std::pair<size_t, int64_t>> written_;  // unit and begin of slots of whole_grads_
  std::map<JobGradientKey, JobGradient> job_grads_;
  std::vector<bool> has_main_grads_;  // by unit: the shard has been written
  Job job_;
  std::map<size_t, BufferId> gathered_;  // by unit, in this job
  std::set<size_t> is_up_to_date_;       // units that this program has gathered before use
};

}  // namespace braid
