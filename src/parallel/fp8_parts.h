#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/graph.h"
#include "ops/quantize_part.h"
#include "parallel/parameter_layout.h"
#include "parallel/task_writer.h"
#include "parallel/unit_buffers.h"

namespace braid {

/// Of a weight's copies by rows and by columns; the second is empty without a backward.
using WeightScales = std::pair<BufferRange, BufferRange>;

/// FP8 copies of the shards of weights, which ranks gather instead of the weights: one byte per
/// element. Adds the tasks that make them from main weights, once per step, for FP8 units of which
/// ranks have shards. A weight has one scale for all of it, or for each square block:
///
///   part_magnitudes(main_weights -> m) ...  all_reduce_max(m)
///   scales_of_magnitudes(m -> scales)  quantize_part(main_weights, m -> fp8)
///
/// A shard may begin and end anywhere, so ranks share blocks: the reduction finds the largest
/// magnitudes of whole blocks. Scales are then on all ranks.
/// A node with a tally gives it to its quantize_part.
class Fp8Parts {
 public:
  using Tallies = std::unordered_map<std::string, BufferRange>;  // by name of the value

  /// `graphs`: of all virtual stages. All arguments must outlive this object.
  Fp8Parts(TaskWriter& writer, const ParameterLayout& layout, UnitBuffers& units,
           std::span<const StageGraph* const> graphs, const Tallies& tallies);

  /// Whether ranks gather the copy of that weight.
  bool has(const ParameterSlot& slot) const { return scales_.contains(slot.parameter); }
  const WeightScales& scales(const ParameterSlot& slot) const { return scales_.at(slot.parameter); }

 private:
  /// A weight, and the node that would quantise it whole.
  struct Weight {
    const StageGraph* graph = nullptr;
    const Node* maker = nullptr;
    const ParameterSlot* slot = nullptr;
    BufferRange magnitudes = {};
  };

  void find_makers(std::span<const StageGraph* const> graphs);
  /// The units of a domain.
  void add_domain(size_t domain);
  void find_magnitudes(std::vector<Weight>& weights, const ParameterDomain& domain);
  void add_scales(const Weight& weight);
  void add_parts(size_t unit, std::span<const Weight> weights);
  UnitRange own_part(const Weight& weight) const;
  void add(std::string_view op, const Weight& weight, std::vector<Attribute> attributes,
           std::span<const BufferRange> ranges, std::vector<OperandSpec> operands);
  void add_part(const Weight& weight, UnitRange its, BufferRange to);
  QuantizePartAttributes part_attributes(const Weight& weight, UnitRange part) const;
  OperandSpec part_spec(const Weight& weight, UnitRange part) const;
  Label label(const Weight& weight) const;

  TaskWriter& writer_;
  const ParameterLayout& layout_;
  UnitBuffers& units_;
  const Tallies& tallies_;
  std::map<size_t, Weight> makers_;  // by parameter
  std::map<size_t, WeightScales> scales_;
};

}  // namespace braid
