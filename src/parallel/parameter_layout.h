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

/// A parameter's place in its unit's flat buffers.
struct ParameterSlot {
  size_t parameter = 0;  ///< index into ParameterLayout::parameters
  size_t unit = 0;       ///< index into ParameterLayout::units
  int64_t begin = 0;     ///< elements [begin, end) of the unit
  int64_t end = 0;
};

/// Parameters that are gathered, reduced and updated together, in one flat array: those of one
/// domain in a layer (or bucket of layers). First come those that decay, then the others, each at a
/// multiple of 64 elements. Params, main weights, main grads and optimizer states all use these
/// offsets. Where state is sharded, the array ends at a multiple of 64 times the number of shards
/// of the domain.
struct ParameterUnit {
  std::string name;           ///< "layers.3"; of experts "layers.3.experts"
  size_t domain = 0;          ///< index into ParameterLayout::domains
  int32_t layer = -1;         ///< the first of its layers
  int32_t virtual_stage = 0;  ///< whose backward completes its gradient
  std::vector<size_t> slots;  ///< indices into ParameterLayout::slots, ascending begin
  int64_t decay_end = 0;      ///< elements [0, decay_end) decay, [decay_end, num_elems) do not
  int64_t num_elems = 0;      ///< alignment gaps included
};

/// The parameters of one rank: of its virtual stages, and of each its part under tensor
/// parallelism. Ranks that differ in data, context or tensor position only have equal offsets.
struct ParameterLayout {
  std::vector<Parameter> parameters;   ///< in forward order, `shape` is that of the whole tensor
  std::vector<ParameterShard> shards;  ///< parallel: the part of it that lies here
  std::vector<ParameterSlot> slots;    ///< parallel
  std::vector<ParameterUnit> units;    ///< in forward order
  std::unordered_map<std::string, size_t> by_name;
  std::vector<ParameterDomain> domains;  ///< of the whole model, whether this rank has units in it

  const ParameterSlot& slot(const std::string& name) const;
  const ParameterDomain& domain_of(size_t unit) const { return domains[units[unit].domain]; }
};

/// A parameter as a rank holds it.
struct PlacedParameter {
  Parameter parameter;
  ParameterShard shard;
  int32_t virtual_stage = 0;  ///< ascending
};

/// A unit for each Parameter::unit and domain, in order of first use; layers are merged as
/// `buckets` says. `domains` are by DomainKind.
ParameterLayout place_parameters(std::vector<PlacedParameter> parameters,
                                 std::vector<ParameterDomain> domains,
                                 const BucketOptions& buckets);

/// Whole parameters: the layout of one rank alone.
ParameterLayout make_parameter_layout(std::vector<Parameter> parameters);

/// The layout of `rank`. Where embeddings are tied over two pipeline ranks, the last stage holds a
/// copy of the table, a unit of its own on both ranks ("embedding.tokens").
ParameterLayout make_rank_layout(const ModelSpec& model, const Mesh& mesh, int rank,
                                 const ParallelOptions& options);

/// The virtual stages of a pipeline rank, in order.
std::vector<StageSlice> stages_of_rank(const ParallelOptions& options, const ModelSpec& model,
                                       const Mesh& mesh, int rank);

/// Place of `rank` among the ranks that share its sequences.
ContextShard context_shard(const Mesh& mesh, int rank, const ParallelOptions& options);

/// Whether `rank` shares the table of tied embeddings with another pipeline rank.
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

/// What of a unit the shards with these indices hold, which are by domain (`shard_indices`).
UnitRange owned_range(const ParameterLayout& layout, size_t unit,
                      std::span<const int64_t> shard_indices);

/// Elements of a unit, one behind the other from `unit_begin` on, that are `num_runs` runs of
/// `run_elems` in a whole parameter: the first from `full_begin`, each next one a row behind.
struct ParameterBlock {
  size_t parameter = 0;    ///< index into ParameterLayout::parameters
  int64_t unit_begin = 0;  ///< first element in the unit
  int64_t full_begin = 0;  ///< first element in the whole parameter, row-major
  int64_t num_runs = 1;
  int64_t run_elems = 0;

  int64_t num_elems() const { return num_runs * run_elems; }
};

/// Calls `visit` for all blocks inside `range` of a unit, ascending: a handful per parameter,
/// however many rows it has. Gaps, and rows past the end of a whole parameter (a padded
/// vocabulary), are in no block.
void for_each_block(const ParameterLayout& layout, size_t unit, UnitRange range,
                    const std::function<void(const ParameterBlock&)>& visit);

/// Names of a unit's flat buffers.
std::string param_buffer_name(const ParameterUnit& unit);
std::string main_weight_buffer_name(const ParameterUnit& unit);
std::string main_grad_buffer_name(const ParameterUnit& unit);
std::string exp_avg_buffer_name(const ParameterUnit& unit);
std::string exp_avg_sq_buffer_name(const ParameterUnit& unit);

}  // namespace braid
