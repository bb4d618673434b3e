#include "parallel/parameter_layout.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "base/errors.h"
#include "model/mtp.h"
#include "parallel/layer_matrices.h"
#include "parallel/parameter_groups.h"

namespace braid {
namespace {

int64_t round_up(int64_t elems, int64_t multiple) {
  return (elems + multiple - 1) / multiple * multiple;
}

/// How the optimizer changes a parameter.
enum class Update : uint8_t { kDecayed, kPlain, kBalance };

Update update_of(const Parameter& parameter) {
  return parameter.balances       ? Update::kBalance
         : parameter.weight_decay ? Update::kDecayed
                                  : Update::kPlain;
}

/// Appends slots for these parameters of the unit.
void place(ParameterLayout& layout, ParameterUnit& unit, const std::vector<size_t>& members) {
  for (const size_t index : members) {
    ParameterSlot& slot = layout.slots[index];
    slot.begin = unit.num_elems;
    slot.end = slot.begin + layout.shards[index].local_shape.num_elems();
    unit.num_elems = round_up(slot.end, kParameterAlignmentElems);
    unit.slots.push_back(index);
  }
}

/// The members that are updated like that.
std::vector<size_t> updated_by(const ParameterLayout& layout, const std::vector<size_t>& members,
                               Update update) {
  std::vector<size_t> list;
  std::ranges::copy_if(members, std::back_inserter(list),
                       [&](size_t index) { return update_of(layout.parameters[index]) == update; });
  return list;
}

/// Appends the unit's parameters of that kind, those with one learning rate behind each other: in
/// the order in which the rates appear.
void place_runs(ParameterLayout& layout, ParameterUnit& unit, std::vector<size_t> members,
                bool weight_decay) {
  while (!members.empty()) {
    const double rate = layout.parameters[members.front()].rate;
    const auto others = std::stable_partition(members.begin(), members.end(), [&](size_t index) {
      return layout.parameters[index].rate == rate;
    });
    const int64_t begin = unit.num_elems;
    place(layout, unit, {members.begin(), others});
    unit.runs.push_back({begin, unit.num_elems, weight_decay, rate});
    members.erase(members.begin(), others);
  }
}

/// The zeros up to a whole shard are updated like parameters without decay.
void add_padding(ParameterUnit& unit) {
  const int64_t end = unit.runs.empty() ? 0 : unit.runs.back().end;
  if (end == unit.balance_begin) {
    return;
  }
  if (!unit.runs.empty() && !unit.runs.back().weight_decay && unit.runs.back().rate == 1.0) {
    unit.runs.back().end = unit.balance_begin;
  } else {
    unit.runs.push_back({end, unit.balance_begin, false, 1.0});
  }
}

/// Adds parameters to the current unit of their domain, or starts a new unit.
class LayoutBuilder {
 public:
  LayoutBuilder(std::vector<ParameterDomain> domains, const BucketOptions& buckets)
      : buckets_(buckets), open_(kKinds * domains.size()) {
    layout_.domains = std::move(domains);
  }

  void add(PlacedParameter placed) {
    const size_t unit = unit_for(placed);
    const size_t index = layout_.parameters.size();
    const bool inserted = layout_.by_name.emplace(placed.parameter.name, index).second;
    check(inserted, "two parameters are called {}", placed.parameter.name);
    members_[unit].push_back(index);
    layout_.slots.push_back({.parameter = index, .unit = unit});
    layout_.parameters.push_back(std::move(placed.parameter));
    layout_.shards.push_back(std::move(placed.shard));
  }

  ParameterLayout take() {
    for (size_t index = 0; index < layout_.units.size(); ++index) {
      ParameterUnit& unit = layout_.units[index];
      const auto members = [&](Update update) {
        return updated_by(layout_, members_[index], update);
      };
      place_runs(layout_, unit, members(Update::kDecayed), true);
      unit.decay_end = unit.num_elems;
      place_runs(layout_, unit, members(Update::kPlain), false);
      unit.balance_begin = unit.num_elems;
      place(layout_, unit, members(Update::kBalance));
      const bool balances = unit.num_elems > unit.balance_begin;
      unit.num_elems =
          round_up(unit.num_elems, kParameterAlignmentElems * layout_.domain_of(index).num_parts);
      unit.balance_begin = balances ? unit.balance_begin : unit.num_elems;
      add_padding(unit);
      const ParameterUnit* const before = index > 0 ? &layout_.units[index - 1] : nullptr;
      unit.bucket = before == nullptr ? 0 : before->bucket + (begins_alike(*before, unit) ? 0 : 1);
    }
    return std::move(layout_);
  }

 private:
  static constexpr size_t kKinds =
      8;  // of units of a domain: FP8 or not, frozen or not, Muon or not

  /// The most recent unit of a domain.
  struct OpenUnit {
    size_t index = 0;
    std::string last_name;  // Parameter::unit of the last parameter
    bool last_is_layer = false;
    int32_t virtual_stage = -1;
    int64_t bytes = 0;
  };

  static bool begins_alike(const ParameterUnit& a, const ParameterUnit& b) {
    return a.layer >= 0 && a.layer == b.layer && a.virtual_stage == b.virtual_stage;
  }

  size_t unit_for(const PlacedParameter& placed) {
    const Parameter& parameter = placed.parameter;
    const auto domain = static_cast<size_t>(parameter.domain);
    check(domain < layout_.domains.size(), "parameter {} belongs to no domain of the layout",
          parameter.name);
    OpenUnit& open = open_[kKinds * domain + (placed.is_fp8 ? 1 : 0) + (parameter.frozen ? 2 : 0) +
                           (placed.is_muon ? 4 : 0)];
    const bool same_unit =
        parameter.unit == open.last_name && placed.virtual_stage == open.virtual_stage;
    if (!same_unit && !merges(open, placed)) {
      open.index = start_unit(placed);
      open.bytes = 0;
    }
    open.last_name = parameter.unit;
    open.last_is_layer = parameter.layer >= 0;
    open.virtual_stage = placed.virtual_stage;
    open.bytes += placed.shard.local_shape.num_elems() * static_cast<int64_t>(sizeof(float));
    return open.index;
  }

  size_t start_unit(const PlacedParameter& placed) {
    const Parameter& parameter = placed.parameter;
    const bool is_expert = parameter.domain == DomainKind::kExpert;
    layout_.units.push_back({.name = parameter.unit + (is_expert ? ".experts" : "") +
                                     (placed.is_fp8 ? ".fp8" : "") +
                                     (placed.is_muon ? ".muon" : ""),
                             .domain = static_cast<size_t>(parameter.domain),
                             .layer = parameter.layer,
                             .is_fp8 = placed.is_fp8,
                             .frozen = parameter.frozen,
                             .is_muon = placed.is_muon,
                             .virtual_stage = placed.virtual_stage});
    members_.emplace_back();
    return layout_.units.size() - 1;
  }

  bool merges(const OpenUnit& open, const PlacedParameter& placed) const {
    if (placed.parameter.layer < 0 || !open.last_is_layer ||
        placed.virtual_stage != open.virtual_stage) {
      return false;
    }
    return buckets_.kind == BucketKind::kVirtualStage ||
           (buckets_.kind == BucketKind::kBytes && open.bytes < buckets_.bucket_bytes);
  }

  const BucketOptions& buckets_;
  ParameterLayout layout_;
  std::vector<OpenUnit> open_;                // by domain and kind
  std::vector<std::vector<size_t>> members_;  // by unit
};

ParameterShard whole(const Parameter& parameter) {
  return {.axis = 0,
          .ranges = {{0, parameter.shape[0]}},
          .rows = {},
          .local_shape = parameter.shape,
          .partial_sums = {},
          .counted = parameter.balances
                         ? std::vector<IndexRange>()
                         : std::vector<IndexRange>{{0, parameter.shape.num_elems()}}};
}

bool has_experts(const ModelSpec& model) {
  return model.layers.has(kMoeBlock) ||
         (model.mtp_depth > 0 && mtp_layer(model).feed_forward == &kMoeBlock);
}

bool has_experts(std::span<const Parameter> parameters) {
  return std::ranges::any_of(parameters, [](const Parameter& parameter) {
    return parameter.domain == DomainKind::kExpert;
  });
}

/// Visits elements [begin, end) of a block, counted from its first element: the rest of the first
/// run, then whole runs, then the start of the last run.
template <class Visit>
void visit_part(const ElementBlock& block, int64_t pitch, int64_t begin, int64_t end,
                const Visit& visit) {
  while (begin < end) {
    const int64_t run = begin / block.run_elems;
    const int64_t in_run = begin % block.run_elems;
    const int64_t whole_runs = in_run == 0 ? (end - begin) / block.run_elems : 0;
    const int64_t run_elems =
        whole_runs > 0 ? block.run_elems : std::min(end - begin, block.run_elems - in_run);
    const ElementBlock part{.full_begin = block.full_begin + run * pitch + in_run,
                            .local_begin = block.local_begin + begin,
                            .num_runs = std::max<int64_t>(1, whole_runs),
                            .run_elems = run_elems};
    visit(part);
    begin += part.num_elems();
  }
}

}  // namespace

const ParameterSlot& ParameterLayout::slot(const std::string& name) const {
  const auto found = by_name.find(name);
  check(found != by_name.end(), "no parameter is called {}", name);
  return slots[found->second];
}

ParameterLayout place_parameters(std::vector<PlacedParameter> parameters,
                                 std::vector<ParameterDomain> domains,
                                 const BucketOptions& buckets) {
  LayoutBuilder builder(std::move(domains), buckets);
  for (PlacedParameter& placed : parameters) {
    builder.add(std::move(placed));
  }
  return builder.take();
}

ParameterLayout make_parameter_layout(std::vector<Parameter> parameters) {
  std::vector<ParameterDomain> domains =
      parameter_domains(Mesh(MeshSizes{}), ParallelOptions{}, has_experts(parameters));
  std::vector<PlacedParameter> placed;
  for (Parameter& parameter : parameters) {
    ParameterShard shard = whole(parameter);
    placed.push_back({std::move(parameter), std::move(shard)});
  }
  return place_parameters(std::move(placed), std::move(domains), BucketOptions{});
}

ParameterLayout make_rank_layout(const ModelSpec& model, const Mesh& mesh, int rank,
                                 const ParallelOptions& options) {
  const MeshPosition at = mesh.position(rank);
  const TensorShard tensor{.size = mesh.sizes().tensor,
                           .index = at.tensor,
                           .sequence_parallel = options.sequence_parallel};
  const ExpertShard experts = expert_shard(mesh, rank, options);
  const bool shared_table = shares_tied_embedding(model, mesh, rank, options);
  std::vector<PlacedParameter> placed;
  std::unordered_set<std::string> names;
  const std::vector<StageSlice> stages = stages_of_rank(options, model, mesh, rank);
  for (size_t v = 0; v < stages.size(); ++v) {
    for (Parameter& parameter : stage_parameters(model, stages[v])) {
      if (!names.insert(parameter.name).second) {
        continue;  // two virtual stages of this rank share the embedding: count it once
      }
      if (shared_table && parameter.name == kEmbeddingTable) {
        parameter.unit = kEmbeddingTable;
      }
      ParameterShard shard = shard_parameter(model, parameter, {tensor, experts});
      const bool is_fp8 = options.fp8_weights.contains(parameter.name);
      const bool is_muon = options.muon && is_muon_matrix(parameter);
      apply_groups(options.groups, parameter);
      placed.push_back(
          {std::move(parameter), std::move(shard), static_cast<int32_t>(v), is_fp8, is_muon});
    }
  }
  ParameterLayout layout = place_parameters(
      std::move(placed), parameter_domains(mesh, options, has_experts(model)), options.buckets);
  layout.matrices = layer_matrices(layout, {tensor, experts}, model.experts);
  return layout;
}

std::vector<StageSlice> stages_of_rank(const ParallelOptions& options, const ModelSpec& model,
                                       const Mesh& mesh, int rank) {
  if (options.stages.empty()) {
    check(mesh.sizes().pipeline == 1, "{} pipeline ranks without a layout of their stages",
          mesh.sizes().pipeline);
    return {whole_model(model)};
  }
  std::vector<StageSlice> stages;
  const ScheduleOptions schedule = schedule_options(mesh, options, 1);
  for (int v = 0; v < options.virtual_stages; ++v) {
    stages.push_back(options.stages.at(
        static_cast<size_t>(stage_of(schedule, mesh.position(rank).pipeline, v))));
  }
  return stages;
}

ContextShard context_shard(const Mesh& mesh, int rank, const ParallelOptions& options) {
  return {.size = mesh.sizes().context,
          .index = mesh.position(rank).context,
          .inner = mesh.sizes().context_inner,
          .method = options.context_method,
          .mamba = options.mamba_context};
}

ExpertShard expert_shard(const Mesh& mesh, int rank, const ParallelOptions& options) {
  const ExpertPosition at = mesh.expert_position(rank);
  return {.size = mesh.sizes().expert,
          .index = at.expert,
          .tensor = mesh.sizes().expert_tensor,
          .tensor_index = at.expert_tensor,
          .capacity = options.expert_capacity,
          .drops = options.drops_rows,
          .blocks = options.blocks_of_rows,
          .hosts = mesh.sizes().expert_hosts};
}

bool shares_tied_embedding(const ModelSpec& model, const Mesh& mesh, int rank,
                           const ParallelOptions& options) {
  bool embedding = false;
  bool head = false;
  for (const StageSlice& stage : stages_of_rank(options, model, mesh, rank)) {
    embedding = embedding || stage.has_embedding;
    head = head || stage.has_head;
  }
  return head_reads_embedding(model) && embedding != head;
}

ScheduleOptions schedule_options(const Mesh& mesh, const ParallelOptions& options,
                                 int64_t num_microbatches) {
  return {.kind = options.schedule,
          .num_ranks = mesh.sizes().pipeline,
          .virtual_stages = options.virtual_stages,
          .num_microbatches = num_microbatches,
          .group_size = options.group_size,
          .pairs = options.pairs};
}

UnitRange owned_range(const ParameterLayout& layout, size_t unit,
                      std::span<const int64_t> shard_indices) {
  check(shard_indices.size() == layout.domains.size(), "{} shard indices of {} domains",
        shard_indices.size(), layout.domains.size());
  const ParameterUnit& facts = layout.units[unit];
  const int64_t num_parts = layout.domain_of(unit).num_parts;
  const int64_t index = shard_indices[facts.domain];
  check(index >= 0 && index < num_parts && facts.num_elems % num_parts == 0,
        "part {} of {} of {} elements", index, num_parts, facts.num_elems);
  const int64_t size = facts.num_elems / num_parts;
  return {index * size, (index + 1) * size};
}

UnitRange held_range(const ParameterLayout& layout, size_t unit,
                     std::span<const int64_t> shard_indices) {
  const UnitRange owned = owned_range(layout, unit, shard_indices);
  const int64_t size = layout.units[unit].num_elems / layout.domain_of(unit).num_shards;
  const int64_t begin = owned.begin / size * size;
  return {begin, begin + size};
}

void for_each_block(const ParameterLayout& layout, size_t unit, UnitRange range,
                    const std::function<void(const ParameterBlock&)>& visit) {
  for (const size_t index : layout.units[unit].slots) {
    const ParameterSlot& slot = layout.slots[index];
    if (slot.end <= range.begin || slot.begin >= range.end) {
      continue;
    }
    const Shape& shape = layout.parameters[slot.parameter].shape;
    const int64_t pitch = shape.num_elems() / shape[0];
    for (const ElementBlock& block : element_blocks(shape, layout.shards[index])) {
      const int64_t block_begin = slot.begin + block.local_begin;
      const int64_t begin = std::max(range.begin, block_begin) - block_begin;
      const int64_t end = std::min(range.end - block_begin, block.num_elems());
      visit_part(block, pitch, begin, end, [&](const ElementBlock& part) {
        visit({.parameter = slot.parameter,
               .unit_begin = slot.begin + part.local_begin,
               .full_begin = part.full_begin,
               .num_runs = part.num_runs,
               .run_elems = part.run_elems});
      });
    }
  }
}

std::string param_buffer_name(const ParameterUnit& unit) {
  return "params." + unit.name;
}

std::string main_weight_buffer_name(const ParameterUnit& unit) {
  return "main_weights." + unit.name;
}

std::string main_grad_buffer_name(const ParameterUnit& unit) {
  return "main_grads." + unit.name;
}

std::string exp_avg_buffer_name(const ParameterUnit& unit) {
  return "exp_avg." + unit.name;
}

std::string exp_avg_sq_buffer_name(const ParameterUnit& unit) {
  return "exp_avg_sq." + unit.name;
}

std::string ema_buffer_name(const ParameterUnit& unit) {
  return "ema." + unit.name;
}

}  // namespace braid
