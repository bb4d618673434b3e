#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/context_shard.h"
#include "model/parameter_shard.h"
#include "model/parameters.h"
#include "parallel/mesh.h"
#include "parallel/parallel_options.h"
#include "parallel/parameter_domain.h"

namespace braid {

inline constexpr int64_t kParameterAlignmentElems = 64;
inline constexpr std::string_view kEmbeddingTable = "embedding.tokens";

/// Location of a parameter in the flat buffers of its unit.
struct ParameterSlot {
  size_t parameter = 0;  ///< index into ParameterLayout::parameters
  size_t unit = 0;       ///< index into ParameterLayout::units
  int64_t begin = 0;     ///< elements [begin, end) of the unit
  int64_t end = 0;
};

/// Elements [begin, end) of a unit that are updated alike.
struct UpdateRun {
  int64_t begin = 0;
  int64_t end = 0;
  bool weight_decay = true;
  double rate = 1.0;  ///< Parameter::rate
};

/// A matrix that Muon orthogonalises, as far as this rank holds it: `rows` runs of `columns`
/// elements, which begin at `begin` in the unit, `row_pitch` apart.
struct LayerMatrix {
  size_t parameter = 0;  ///< index into ParameterLayout::parameters
  size_t unit = 0;       ///< index into ParameterLayout::units
  int64_t begin = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_pitch = 0;
  int64_t full_rows = 0;  ///< of the whole matrix
  int64_t full_columns = 0;
  std::string_view group;  ///< whose members hold equal runs of its rows or columns; empty: it is
                           ///< whole
};

/// Parameters that are gathered, reduced and updated together in one flat array: those of one
/// domain in a layer or a bucket of layers; those that only FP8 products read have a unit of
/// their own, and so have adapters of frozen weights and matrices that Muon updates. Parameters
/// with weight decay come first, then the others, then biases of routers. Each starts at a multiple
/// of 64 elements. Params, main weights, main grads and optimizer state use the same offsets. If
/// state is sharded, the array length is a multiple of 64 times the number of parts of the domain.
struct ParameterUnit {
  std::string name;           ///< "layers.3"; for experts "layers.3.experts"; then ".fp8"
  size_t domain = 0;          ///< index into ParameterLayout::domains
  int32_t layer = -1;         ///< first layer of the unit
  bool is_fp8 = false;        ///< only FP8 products read its weights
  bool frozen = false;        ///< nothing but weights: no gradients, no optimizer state
  bool is_muon = false;       ///< matrices that Muon updates
  int32_t virtual_stage = 0;  ///< virtual stage whose backward completes the unit's gradient
  int64_t bucket = 0;         ///< ascending; units that begin with the same layer share it
  std::vector<size_t> slots;  ///< indices into ParameterLayout::slots, ascending by begin
  int64_t decay_end = 0;  ///< elements [0, decay_end) have weight decay, [decay_end, balance_begin)
                          ///< do not
  int64_t balance_begin = 0;    ///< [balance_begin, num_elems) are biases of routers
  int64_t num_elems = 0;        ///< includes alignment gaps
  std::vector<UpdateRun> runs;  ///< of [0, balance_begin), ascending; they include the gaps
};

/// The parameters of one rank: the tensor-parallel parts of the parameters of its virtual stages.
/// Ranks that differ only in data, context or tensor position have equal offsets.
struct ParameterLayout {
  std::vector<Parameter> parameters;   ///< in forward order; `shape` is that of the whole tensor
  std::vector<ParameterShard> shards;  ///< by parameter: the part that this rank holds
  std::vector<ParameterSlot> slots;    ///< by parameter
  std::vector<ParameterUnit> units;    ///< in forward order
  std::vector<LayerMatrix> matrices;   ///< of the units that Muon updates, ascending by unit
  std::unordered_map<std::string, size_t> by_name;
  std::vector<ParameterDomain> domains;  ///< all domains of the model, even if this rank has no
                                         ///< unit in them

  const ParameterSlot& slot(const std::string& name) const;
  const ParameterDomain& domain_of(size_t unit) const { return domains[units[unit].domain]; }
};

/// A parameter and the part of it that a rank holds.
struct PlacedParameter {
  Parameter parameter;
  ParameterShard shard;
  int32_t virtual_stage = 0;  ///< ascending
  bool is_fp8 = false;        ///< only FP8 products read it
  bool is_muon = false;       ///< Muon updates it
};

/// Creates a unit for each Parameter::unit and domain, in order of first use, and another for those
/// that only FP8 products read. Frozen and trained parameters are never in one unit. Merges layers
/// as `buckets` says. `domains` are by DomainKind.
ParameterLayout place_parameters(std::vector<PlacedParameter> parameters,
                                 std::vector<ParameterDomain> domains,
                                 const BucketOptions& buckets);

/// Layout of a single rank that holds all parameters whole.
ParameterLayout make_parameter_layout(std::vector<Parameter> parameters);

/// Layout of `rank`. If two pipeline ranks share the embedding (tied, or read by multi-token
/// prediction), the last stage holds a copy of the table. The table is then a unit of its own
/// ("embedding.tokens") on both ranks.
ParameterLayout make_rank_layout(const ModelSpec& model, const Mesh& mesh, int rank,
                                 const ParallelOptions& options);

/// The virtual stages of a pipeline rank, in order.
std::vector<StageSlice> stages_of_rank(const ParallelOptions& options, const ModelSpec& model,
                                       const Mesh& mesh, int rank);

/// Position of `rank` among the ranks that share its sequences.
ContextShard context_shard(const Mesh& mesh, int rank, const ParallelOptions& options);

/// Position of `rank` among the ranks that hold different experts.
ExpertShard expert_shard(const Mesh& mesh, int rank, const ParallelOptions& options);

/// True if `rank` shares the table of the embedding with another pipeline rank (tied, or read by
/// multi-token prediction).
bool shares_tied_embedding(const ModelSpec& model, const Mesh& mesh, int rank,
                           const ParallelOptions& options);

ScheduleOptions schedule_options(const Mesh& mesh, const ParallelOptions& options,
                                 int64_t num_microbatches);

/// Elements [begin, end) of a unit.
struct UnitRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t num_elems() const { return end - begin; }
  friend bool operator==(const UnitRange&, const UnitRange&) = default;
};

/// The range of a unit that the rank with these indices updates. `shard_indices` is by domain, as
/// returned by `shard_indices()`.
UnitRange owned_range(const ParameterLayout& layout, size_t unit,
                      std::span<const int64_t> shard_indices);

/// The shard that this rank holds: what it updates, or more if ranks with the same shard share its
/// update.
UnitRange held_range(const ParameterLayout& layout, size_t unit,
                     std::span<const int64_t> shard_indices);

/// Consecutive elements of a unit, starting at `unit_begin`, that correspond to `num_runs` runs of
/// `run_elems` elements in the whole parameter. The first run starts at `full_begin`; each next run
/// starts one row further.
struct ParameterBlock {
  size_t parameter = 0;    ///< index into ParameterLayout::parameters
  int64_t unit_begin = 0;  ///< first element in the unit
  int64_t full_begin = 0;  ///< first element in the whole parameter, row-major
  int64_t num_runs = 1;
  int64_t run_elems = 0;

  int64_t num_elems() const { return num_runs * run_elems; }
};

/// Calls `visit` for all blocks inside `range` of a unit, in ascending order. A parameter has only
/// a few blocks, independent of its number of rows. Gaps, and rows past the end of a whole
/// parameter (a padded vocabulary), belong to no block.
void for_each_block(const ParameterLayout& layout, size_t unit, UnitRange range,
                    const std::function<void(const ParameterBlock&)>& visit);

/// Names of a unit's flat buffers.
std::string param_buffer_name(const ParameterUnit& unit);
std::string main_weight_buffer_name(const ParameterUnit& unit);
std::string main_grad_buffer_name(const ParameterUnit& unit);
std::string exp_avg_buffer_name(const ParameterUnit& unit);
std::string exp_avg_sq_buffer_name(const ParameterUnit& unit);
std::string ema_buffer_name(const ParameterUnit& unit);

}  // namespace braid
