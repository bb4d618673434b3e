#include "parallel/optimizer_tasks.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/optimizer.h"

namespace braid {
namespace {

OperandSpec vector_spec(DType dtype, Access access, int64_t num_elems) {
  return {.dtype = dtype, .access = access, .shape = {num_elems}};
}

UnitRange intersect(UnitRange a, UnitRange b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

}  // namespace

OptimizerTasks::OptimizerTasks(TaskWriter& writer, const ParameterLayout& layout,
                               UnitBuffers& units, const Options& options)
    : writer_(writer), layout_(layout), units_(units), options_(options) {
  add_state();
}

/// fp32 weights are updated in place where this rank holds just what it owns.
bool OptimizerTasks::has_main_weights() const {
  return options_.dtype == DType::kBF16 || options_.shard == ShardKind::kOptimizer ||
         options_.shard == ShardKind::kGradients;
}

void OptimizerTasks::add_state() {
  ProgramBuilder& builder = writer_.builder();
  const auto add_all = [&](std::string (*name)(const ParameterUnit&), BufferRole role) {
    std::vector<UnitBuffer> buffers;
    for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
      const UnitRange range = units_.owned(unit);
      buffers.push_back({builder.add_buffer({.name = name(layout_.units[unit]),
                                             .dtype = DType::kF32,
                                             .shape = {range.num_elems()},
                                             .role = role,
                                             .lifetime = Lifetime::kPersistent}),
                         range});
    }
    return buffers;
  };
  if (has_main_weights()) {
    main_weights_ = add_all(main_weight_buffer_name, BufferRole::kMainWeight);
  } else {
    for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
      main_weights_.push_back(units_.params(unit));
    }
  }
  exp_avg_ = add_all(exp_avg_buffer_name, BufferRole::kOptimizerState);
  exp_avg_sq_ = add_all(exp_avg_sq_buffer_name, BufferRole::kOptimizerState);
  const auto add_io = [&](std::string name, int64_t num_elems) {
    return builder.add_buffer({.name = std::move(name),
                               .dtype = DType::kF32,
                               .shape = {num_elems},
                               .role = BufferRole::kIo,
                               .lifetime = Lifetime::kPersistent});
  };
  scalars_ = add_io("optimizer_scalars", 3);
  grad_norm_ = add_io("grad_norm", 1);
  grad_scale_ = add_io("grad_scale", 1);
}

/// What of the unit this rank counts in the norm, in as few ranges as possible: gaps hold zeros and
/// may be counted.
std::vector<UnitRange> OptimizerTasks::counted_ranges(size_t unit) const {
  const ParameterUnit& facts = layout_.units[unit];
  std::vector<UnitRange> ranges;
  if (facts.name == kEmbeddingTable && !options_.counts_tied_copy) {
    return ranges;
  }
  int64_t counted_until = 0;  // everything before is counted, or is a gap behind what is counted
  bool open = true;
  for (const size_t index : facts.slots) {
    const ParameterSlot& slot = layout_.slots[index];
    int64_t local = 0;
    for (const IndexRange& counted : layout_.shards[index].counted) {
      if (counted.begin > local) {
        open = false;
      }
      const UnitRange range{slot.begin + counted.begin, slot.begin + counted.end};
      if (open && !ranges.empty()) {
        ranges.back().end = range.end;
      } else {
        ranges.push_back({open ? counted_until : range.begin, range.end});
      }
      open = true;
      local = counted.end;
    }
    open = open && local == slot.end - slot.begin;
  }
  if (open && !ranges.empty()) {
    ranges.back().end = facts.num_elems;
  }
  std::vector<UnitRange> owned;
  for (const UnitRange& range : ranges) {
    const UnitRange part = intersect(range, units_.owned(unit));
    if (part.begin < part.end) {
      owned.push_back(part);
    }
  }
  return owned;
}

void OptimizerTasks::clip() {
  ProgramBuilder& builder = writer_.builder();
  std::vector<std::pair<size_t, UnitRange>> pieces;
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    for (const UnitRange& range : counted_ranges(unit)) {
      pieces.emplace_back(unit, range);
    }
  }
  // A rank that counts nothing still takes part in the sum over ranks.
  const int64_t num_partials = std::max<int64_t>(static_cast<int64_t>(pieces.size()), 1);
  BufferId partials = builder.add_buffer({.name = "grad_norm_partials",
                                          .dtype = DType::kF64,
                                          .shape = {num_partials},
                                          .role = BufferRole::kScratch,
                                          .lifetime = Lifetime::kStep});
  const Label at{.phase = Phase::kOptimizer, .site = builder.site("clip")};
  if (pieces.empty()) {
    writer_.fill_zero(builder.whole(partials), at);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& [unit, range] = pieces[i];
    const OpSpec spec{.op = "squared_norm",
                      .attributes = {},
                      .operands = {vector_spec(DType::kF32, Access::kRead, range.num_elems()),
                                   vector_spec(DType::kF64, Access::kWrite, 1)}};
    const auto place = static_cast<int64_t>(i);
    builder.add_task(
        spec,
        std::array{units_.main_grads(unit).at(range), BufferRange{partials, place, place + 1}},
        writer_.stream(), units_.label(unit, Phase::kOptimizer));
  }
  const char* const group = options_.shard == ShardKind::kNone ? "model" : "model.shard";
  int64_t num_sums = num_partials;
  if (writer_.groups().size(group) > 1) {
    const BufferId total =
        writer_.step_buffer("squared_grad_norm", DType::kF64, 1, BufferRole::kScratch);
    const OpSpec spec{.op = "sum",
                      .attributes = {},
                      .operands = {vector_spec(DType::kF64, Access::kRead, num_partials),
                                   vector_spec(DType::kF64, Access::kWrite, 1)}};
    builder.add_task(spec, std::array{builder.whole(partials), builder.whole(total)},
                     writer_.stream(), at);
    writer_.all_reduce(builder.whole(total), group,
                       {.phase = Phase::kComm, .site = builder.site("clip")});
    partials = total;
    num_sums = 1;
  }
  const OpSpec spec{.op = "clip_scale",
                    .attributes = to_attributes(
                        ClipScaleAttributes{.max_norm = options_.optimizer.max_grad_norm}),
                    .operands = {vector_spec(DType::kF64, Access::kRead, num_sums),
                                 vector_spec(DType::kF32, Access::kWrite, 1),
                                 vector_spec(DType::kF32, Access::kWrite, 1)}};
  builder.add_task(
      spec,
      std::array{builder.whole(partials), builder.whole(grad_norm_), builder.whole(grad_scale_)},
      writer_.stream(), at);
}

void OptimizerTasks::update() {
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    const ParameterUnit& facts = layout_.units[unit];
    const UnitRange own = units_.owned(unit);
    update_range(unit, intersect(own, {0, facts.decay_end}), options_.optimizer.weight_decay);
    update_range(unit, intersect(own, {facts.decay_end, facts.num_elems}), 0.0);
    if (!units_.gathers_updated_weights(unit)) {
      continue;
    }
    // AdamW writes bf16 weights, and fp32 ones that are their own main weights.
    if (options_.dtype != DType::kBF16 && has_main_weights()) {
      writer_.copy(main_weights_[unit].all(), units_.params(unit).at(own),
                   units_.label(unit, Phase::kOptimizer));
    }
    if (!units_.gathers_before_use(unit)) {
      units_.gather_updated_weights(unit);
    }
  }
}

void OptimizerTasks::update_range(size_t unit, UnitRange range, double weight_decay) {
  if (range.begin >= range.end) {
    return;
  }
  ProgramBuilder& builder = writer_.builder();
  const OptimizerOptions& optimizer = options_.optimizer;
  const bool has_param = options_.dtype == DType::kBF16;
  const int64_t num_elems = range.num_elems();
  OpSpec spec{.op = "adamw",
              .attributes = to_attributes(AdamwAttributes{.beta1 = optimizer.beta1,
                                                          .beta2 = optimizer.beta2,
                                                          .epsilon = optimizer.epsilon,
                                                          .weight_decay = weight_decay,
                                                          .has_param = has_param}),
              .operands = {vector_spec(DType::kF32, Access::kRead, num_elems),
                           vector_spec(DType::kF32, Access::kRead, 1),
                           vector_spec(DType::kF32, Access::kRead, 3)}};
  std::vector<BufferRange> ranges{units_.main_grads(unit).at(range), builder.whole(grad_scale_),
                                  builder.whole(scalars_)};
  for (const UnitBuffer& state : {main_weights_[unit], exp_avg_[unit], exp_avg_sq_[unit]}) {
    spec.operands.push_back(vector_spec(DType::kF32, Access::kReadWrite, num_elems));
    ranges.push_back(state.at(range));
  }
  if (has_param) {
    spec.operands.push_back(vector_spec(DType::kBF16, Access::kWrite, num_elems));
    ranges.push_back(units_.params(unit).at(range));
  }
  builder.add_task(spec, ranges, writer_.stream(), units_.label(unit, Phase::kOptimizer));
}

}  // namespace braid
