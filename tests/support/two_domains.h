#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "parallel/optimizer_tasks.h"
#include "parallel/parameter_layout.h"
#include "parallel/task_writer.h"
#include "parallel/unit_buffers.h"

namespace braid {

/// How a step over dense and expert parameters is laid out.
struct TwoDomainsOptions {
  ParallelOptions parallel;
  DType dtype = DType::kF32;
  std::optional<DType> expert_weight_dtype = std::nullopt;
};

/// A step without a model: parameters of both domains whose gradients the host writes. Four layers,
/// half of them per pipeline rank (of one or two). Layers 0 and 1 have eight experts, so that a
/// second pipeline rank has none.
class TwoDomains {
 public:
  static constexpr int kLayers = 4;
  static constexpr int kExpertLayers = 2;
  static constexpr int64_t kExperts = 8;
  static constexpr int64_t kRowsPerExpert = 4;
  static constexpr int kMicrobatches = 2;

  TwoDomains(const MeshSizes& sizes, TwoDomainsOptions options)
      : mesh_(sizes), options_(std::move(options)) {}

  const Mesh& mesh() const { return mesh_; }

  /// All parameters in forward order, in full.
  static std::vector<Parameter> parameters() {
    std::vector<Parameter> all;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const auto add = [&](const char* name, const Shape& shape, DomainKind domain, bool decays) {
        all.push_back({.name = fmt::format("layers.{}.{}", layer, name),
                       .shape = shape,
                       .weight_decay = decays,
                       .domain = domain,
                       .layer = layer,
                       .unit = fmt::format("layers.{}", layer)});
      };
      add("norm", {20}, DomainKind::kDense, false);
      add("in", {16, 12}, DomainKind::kDense, true);
      if (layer < kExpertLayers) {
        add("experts.in", {kExperts * kRowsPerExpert, 10}, DomainKind::kExpert, true);
        add("experts.bias", {kExperts, 6}, DomainKind::kExpert, false);
      }
      add("out", {12, 16}, DomainKind::kDense, true);
    }
    return all;
  }

  ParameterLayout layout(int rank) const {
    std::vector<PlacedParameter> placed;
    const int layers_per_rank = kLayers / mesh_.sizes().pipeline;
    for (Parameter& parameter : parameters()) {
      if (parameter.layer / layers_per_rank == mesh_.position(rank).pipeline) {
        ParameterShard shard = shard_of(parameter, rank);
        placed.push_back({std::move(parameter), std::move(shard)});
      }
    }
    std::vector<ParameterDomain> domains = parameter_domains(mesh_, options_.parallel, true);
    domains.back().weight_dtype = options_.expert_weight_dtype;
    return place_parameters(std::move(placed), std::move(domains), options_.parallel.buckets);
  }

  /// "gradient.<parameter>" f32 [microbatches, elements here] are this rank's addends; the host
  /// writes them.
  Program build(int rank) const {
    ProgramBuilder builder("two_domains", rank, mesh_.num_ranks());
    ProgramGroups groups(builder, mesh_, rank);
    TaskWriter writer(builder, groups,
                      builder.add_stream({.name = "compute", .kind = StreamKind::kCompute}));
    const ParameterLayout layout = this->layout(rank);
    UnitBuffers units(writer, layout,
                      {.dtype = options_.dtype,
                       .weight_gather = options_.parallel.weight_gather,
                       .whole_units = options_.parallel.whole_units,
                       .shard_indices = shard_indices(mesh_, rank, layout.domains)});
    OptimizerTasks optimizer(writer, layout, units, {});
    for (int32_t m = 0; m < kMicrobatches; ++m) {
      add_forward(builder, writer, layout, units, m);
      add_backward(builder, writer, layout, units, m);
    }
    units.finish_gradients(false);
    optimizer.clip();
    optimizer.update();
    return builder.take();
  }

  /// What the host writes into "gradient.<parameter>". Over the ranks that share an element they
  /// add up to the same integers in any mesh, so that sums are exact in any order.
  std::vector<float> addends(const ParameterLayout& layout, size_t index, int rank) const {
    const Parameter& parameter = layout.parameters[index];
    const ParameterShard& shard = layout.shards[index];
    const auto [num_origins, origin] = origins(parameter, shard, rank);
    const int64_t pitch = parameter.shape.num_elems() / parameter.shape[0];
    std::vector<float> values(static_cast<size_t>(kMicrobatches * shard.local_shape.num_elems()));
    for (int m = 0; m < kMicrobatches; ++m) {
      for (const ElementBlock& block : element_blocks(parameter.shape, shard)) {
        for (int64_t i = 0; i < block.num_elems(); ++i) {
          const int64_t full = block.full_begin + i / block.run_elems * pitch + i % block.run_elems;
          const int64_t local = m * shard.local_shape.num_elems() + block.local_begin + i;
          values[static_cast<size_t>(local)] =
              addend(fmt::format("{} {} {}", parameter.name, full, m), num_origins, origin);
        }
      }
    }
    return values;
  }

 private:
  static float number(const std::string& key) {
    return static_cast<float>(stable_hash(key.data(), key.size()) % 17) - 8.0f;
  }

  static float addend(const std::string& key, int num_origins, int origin) {
    if (origin > 0) {
      return number(fmt::format("{} {}", key, origin));
    }
    float rest = number(key);
    for (int other = 1; other < num_origins; ++other) {
      rest -= number(fmt::format("{} {}", key, other));
    }
    return rest;
  }

  /// Of how many ranks an element's addends come, and which of them this rank is.
  std::pair<int, int> origins(const Parameter& parameter, const ParameterShard& shard,
                              int rank) const {
    const bool is_expert = parameter.domain == DomainKind::kExpert;
    const char* const copies = is_expert ? "expert.data" : "gradient";
    int count = static_cast<int>(mesh_.group(copies, rank).ranks.size());
    int index = mesh_.index_in(copies, rank);
    for (const PartialSum& partial : shard.partial_sums) {
      const auto ranks = static_cast<int>(mesh_.group(partial.group, rank).ranks.size());
      index = index * ranks + mesh_.index_in(partial.group, rank);
      count *= ranks;
    }
    return {count, index};
  }

  /// An equal run of rows or columns, or all with a sum over `group` to come.
  static ParameterShard part_of(const Parameter& parameter, int axis, int64_t ranks,
                                int64_t index) {
    const int64_t size = parameter.shape[axis] / ranks;
    ParameterShard shard{.axis = axis,
                         .ranges = {{index * size, (index + 1) * size}},
                         .rows = {0, axis == 1 ? parameter.shape[0] : 0},
                         .local_shape = parameter.shape,
                         .partial_sums = {},
                         .counted = {}};
    shard.local_shape[axis] = size;
    shard.counted = {{0, shard.local_shape.num_elems()}};
    return shard;
  }

  static ParameterShard summed(ParameterShard shard, const char* group, int64_t index) {
    const IndexRange all{0, shard.local_shape.num_elems()};
    shard.partial_sums = {{all, group}};
    shard.counted = index == 0 ? std::vector{all} : std::vector<IndexRange>();
    return shard;
  }

  ParameterShard shard_of(const Parameter& parameter, int rank) const {
    const MeshSizes& sizes = mesh_.sizes();
    const MeshPosition at = mesh_.position(rank);
    const ExpertPosition experts = mesh_.expert_position(rank);
    if (parameter.name.ends_with("experts.in")) {
      return expert_rows(parameter, experts);
    }
    if (parameter.name.ends_with("experts.bias")) {
      return summed(part_of(parameter, 0, sizes.expert, experts.expert), "expert.tensor",
                    experts.expert_tensor);
    }
    if (parameter.name.ends_with("norm")) {
      return summed(part_of(parameter, 0, 1, 0), "tensor", at.tensor);
    }
    return part_of(parameter, parameter.name.ends_with("out") ? 1 : 0, sizes.tensor, at.tensor);
  }

  /// A run of the rows of each of the rank's experts.
  ParameterShard expert_rows(const Parameter& parameter, const ExpertPosition& at) const {
    const int64_t experts = kExperts / mesh_.sizes().expert;
    const int64_t rows = kRowsPerExpert / mesh_.sizes().expert_tensor;
    ParameterShard shard{.axis = 0,
                         .ranges = {},
                         .rows = {},
                         .local_shape = {experts * rows, parameter.shape[1]},
                         .partial_sums = {},
                         .counted = {}};
    for (int64_t expert = at.expert * experts; expert < (at.expert + 1) * experts; ++expert) {
      const int64_t begin = expert * kRowsPerExpert + at.expert_tensor * rows;
      shard.ranges.push_back({begin, begin + rows});
    }
    shard.counted = {{0, shard.local_shape.num_elems()}};
    return shard;
  }

  static BufferId io(ProgramBuilder& builder, const std::string& name, DType dtype,
                     const Shape& shape) {
    return builder.add_buffer({.name = name,
                               .dtype = dtype,
                               .shape = shape,
                               .role = BufferRole::kIo,
                               .lifetime = Lifetime::kPersistent});
  }

  /// Reads every weight once.
  static void add_forward(ProgramBuilder& builder, TaskWriter& writer,
                          const ParameterLayout& layout, UnitBuffers& units, int32_t m) {
    units.begin_job({JobKind::kForward, m, 0});
    for (const ParameterSlot& slot : layout.slots) {
      const int64_t elems = slot.end - slot.begin;
      const BufferId seen =
          io(builder, fmt::format("seen.{}.m{}", layout.parameters[slot.parameter].name, m),
             units.dtype(slot.unit), {elems});
      writer.copy({units.weights(slot.unit), slot.begin, slot.end}, {seen, 0, elems},
                  {.phase = Phase::kForward, .microbatch = m, .virtual_stage = 0});
    }
    units.end_job();
  }

  static void add_backward(ProgramBuilder& builder, TaskWriter& writer,
                           const ParameterLayout& layout, UnitBuffers& units, int32_t m) {
    units.begin_job({JobKind::kBackward, m, 0});
    for (size_t index = layout.slots.size(); index-- > 0;) {
      const ParameterSlot& slot = layout.slots[index];
      const int64_t elems = slot.end - slot.begin;
      const std::string name = "gradient." + layout.parameters[slot.parameter].name;
      const BufferId given =
          m == 0 ? io(builder, name, DType::kF32, {kMicrobatches, elems}) : find(builder, name);
      const BufferRange from{given, m * elems, (m + 1) * elems};
      const Label label{.phase = Phase::kWgrad, .microbatch = m, .virtual_stage = 0};
      const auto [to, first] = units.gradient(slot);
      if (first) {
        writer.copy(from, to, label);
      } else {
        writer.accumulate(from, to, label);
      }
    }
    units.end_job();
  }

  static BufferId find(const ProgramBuilder& builder, const std::string& name) {
    const std::vector<Buffer>& buffers = builder.program().buffers;
    const auto found =
        std::ranges::find_if(buffers, [&](const Buffer& buffer) { return buffer.name == name; });
    return BufferId(static_cast<uint32_t>(found - buffers.begin()));
  }

  Mesh mesh_;
  TwoDomainsOptions options_;
};

}  // namespace braid
