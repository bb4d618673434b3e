#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/program.h"
#include "parallel/parallel_options.h"
#include "parallel/parameter_layout.h"
#include "plan/run_plan.h"

namespace braid {

/// The persistent buffers that hold a model's state.
enum class StateBuffer : uint8_t { kParam, kMainWeight, kMainGrad, kExpAvg, kExpAvgSq, kEma };
inline constexpr size_t kNumStateBuffers = 6;

/// Elements that are contiguous both in a unit of the whole model and in a buffer of a rank.
struct StateRun {
  int64_t unit_begin = 0;
  int64_t num_elems = 0;
  size_t rank = 0;
  size_t buffer = 0;  ///< index into StateMap::buffers
  int64_t buffer_begin = 0;
};

struct StateBufferFacts {
  StateBuffer kind = StateBuffer::kParam;
  std::string name;
  size_t rank = 0;
  DType dtype = DType::kF32;
  bool has_gaps = false;  ///< elements that belong to no parameter, or to padding
};

/// The properties of a rank that determine the positions of its state.
struct StateRank {
  const ParameterLayout* layout = nullptr;
  const Program* program = nullptr;    ///< with the persistent buffers
  std::vector<int64_t> shard_indices;  ///< parts, by domain; unused if buffers are whole
  /// Set: of weights that are gathered before their next use, only the rank's own part is mapped.
  std::optional<WeightGather> up_to_date = std::nullopt;
};

/// `num_runs` runs of `run_elems` elements that are contiguous in a buffer, and `pitch` apart in a
/// unit of the whole model.
struct StateBlock {
  int64_t unit_begin = 0;
  int64_t num_runs = 1;
  int64_t run_elems = 0;
  int64_t pitch = 0;
  size_t rank = 0;
  size_t buffer = 0;  ///< index into StateMap::buffers
  int64_t buffer_begin = 0;
};

/// Maps parameters, main weights, main gradients, moments and averages of weights, as one rank
/// would hold them, to the buffers of the ranks of a run. Files, fresh weights and comparisons use
/// units of the whole model; executors have shards of the units of their stages.
class StateMap {
 public:
  /// `whole` is the layout of the model as one rank would hold it. Time and memory: a few blocks
  /// per parameter and rank that holds a part of it, for any size of the model.
  StateMap(const ParameterLayout& whole, std::span<const StateRank> ranks);

  const std::vector<StateBufferFacts>& buffers() const { return buffers_; }
  /// Whether any rank has such buffers.
  bool has(StateBuffer kind) const;

  /// The blocks of all ranks that hold a part of the unit; those of a rank are adjacent.
  std::span<const StateBlock> blocks(StateBuffer kind, size_t unit) const {
    return copies_[static_cast<size_t>(kind)].at(unit);
  }

  /// Calls `visit` for all runs that have elements of [begin, begin + count) of the unit, clipped
  /// to this range, on all ranks or on those that `of_rank` selects; for each buffer in ascending
  /// order.
  void for_each_copy(StateBuffer kind, size_t unit, int64_t begin, int64_t count,
                     const std::function<void(const StateRun&)>& visit,
                     const std::function<bool(size_t rank)>& of_rank = {}) const;
  /// The same with each element in only one run, in ascending order: that of the first rank that
  /// has it.
  void for_each_element(StateBuffer kind, size_t unit, int64_t begin, int64_t count,
                        const std::function<void(const StateRun&)>& visit) const;

 private:
  using Blocks = std::vector<std::vector<StateBlock>>;  // by unit of the whole model, by rank

  using BuffersByName = std::unordered_map<std::string_view, const Buffer*>;

  void add_rank(const ParameterLayout& whole, const StateRank& rank, size_t index,
                const BuffersByName& by_name);

  std::vector<StateBufferFacts> buffers_;
  std::vector<Blocks> copies_;  // by kind
};

enum class StateCopies : uint8_t {
  kAll,
  kUpToDate,  ///< between two steps, those that have been updated
};

/// For all ranks; a rank without a plan has the buffers of its stand-in (`rank_programs`).
StateMap make_state_map(const RunPlan& plan, StateCopies copies = StateCopies::kAll);

}  // namespace braid
