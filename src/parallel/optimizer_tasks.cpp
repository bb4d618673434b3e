#include "parallel/optimizer_tasks.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/momentum.h"
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
    : writer_(writer),
      layout_(layout),
      units_(units),
      options_(options),
      muon_(writer, layout, units, options.optimizer) {
  add_state();
}

/// Weights that are their own main weights are updated in place.
bool OptimizerTasks::has_main_weights(size_t unit) const {
  return units_.has_main_weights(unit) && !units_.has_only_main_weights(unit);
}

void OptimizerTasks::add_state() {
  ProgramBuilder& builder = writer_.builder();
  const DType moments = options_.optimizer.moments_dtype;
  const auto add = [&](std::string name, size_t unit, BufferRole role, DType dtype) {
    const UnitRange range = units_.owned(unit);
    return UnitBuffer{builder.add_buffer({.name = std::move(name),
                                          .dtype = dtype,
                                          .shape = {range.num_elems()},
                                          .role = role,
                                          .lifetime = Lifetime::kPersistent}),
                      range};
  };
  const auto add_moments = [&](std::vector<UnitBuffer>& list, int number, auto name_of) {
    for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
      const ParameterUnit& facts = layout_.units[unit];
      const bool has = !facts.frozen && num_moments(rule_of(unit), options_.optimizer) >= number;
      list.push_back(has ? add(name_of(facts), unit, BufferRole::kOptimizerState, moments)
                         : UnitBuffer());
    }
  };
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    main_weights_.push_back(has_main_weights(unit)
                                ? add(main_weight_buffer_name(layout_.units[unit]), unit,
                                      BufferRole::kMainWeight, DType::kF32)
                                : units_.params(unit));
  }
  add_moments(exp_avg_, 1, exp_avg_buffer_name);
  add_moments(exp_avg_sq_, 2, exp_avg_sq_buffer_name);
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    const ParameterUnit& facts = layout_.units[unit];
    const bool has = !facts.frozen && options_.optimizer.ema > 0;
    averages_.push_back(
        has ? add(ema_buffer_name(facts), unit, BufferRole::kOptimizerState, DType::kF32)
            : UnitBuffer());
  }
  const auto add_io = [&](std::string name, int64_t num_elems) {
    return builder.add_buffer({.name = std::move(name),
                               .dtype = DType::kF32,
                               .shape = {num_elems},
                               .role = BufferRole::kIo,
                               .lifetime = Lifetime::kPersistent});
  };
  scalars_ = add_io("optimizer_scalars", moments == DType::kBF16 ? 4 : 3);
  grad_norm_ = add_io("grad_norm", 1);
  grad_scale_ = add_io("grad_scale", 1);
}

void OptimizerTasks::add_op(const OpSpec& spec, std::span<const BufferRange> ranges,
                            const Label& label) {
  writer_.builder().add_task(spec, ranges, writer_.stream(), label);
}

/// Ranges of the unit that this rank counts in the norm, as few as possible. Gaps contain zeros and
/// may be included.
std::vector<UnitRange> OptimizerTasks::counted_ranges(size_t unit) const {
  const ParameterUnit& facts = layout_.units[unit];
  std::vector<UnitRange> ranges;
  if (facts.name == kEmbeddingTable && !options_.counts_tied_copy) {
    return ranges;
  }
  int64_t counted_until = 0;  // all earlier elements are either counted, or belong to a gap after
                              // counted elements
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

Label OptimizerTasks::clip_label(Phase phase) {
  return {.phase = phase, .site = writer_.builder().site("clip")};
}

std::vector<OptimizerTasks::CountedPiece> OptimizerTasks::counted_pieces(size_t domain) const {
  std::vector<CountedPiece> pieces;
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    if (layout_.units[unit].domain == domain && !layout_.units[unit].frozen) {
      for (const UnitRange& range : counted_ranges(unit)) {
        pieces.push_back({unit, range});
      }
    }
  }
  return pieces;
}

/// A rank that counts nothing in a domain still takes part in the sum over ranks.
std::vector<BufferRange> OptimizerTasks::add_squared_norms() {
  std::vector<std::vector<CountedPiece>> pieces;
  int64_t num_partials = 0;
  for (size_t domain = 0; domain < layout_.domains.size(); ++domain) {
    pieces.push_back(counted_pieces(domain));
    num_partials += std::max<int64_t>(std::ssize(pieces.back()), 1);
  }
  const BufferId partials =
      writer_.step_buffer("grad_norm_partials", DType::kF64, num_partials, BufferRole::kScratch);
  const Label at = clip_label(Phase::kOptimizer);
  std::vector<BufferRange> of_domains;
  int64_t place = 0;
  for (const std::vector<CountedPiece>& of_domain : pieces) {
    const int64_t begin = place;
    if (of_domain.empty()) {
      writer_.fill_zero({partials, place, place + 1}, at);
      ++place;
    }
    for (const CountedPiece& piece : of_domain) {
      add_op(
          {.op = std::string(kSquaredNormOp.name),
           .attributes = {},
           .operands = {vector_spec(units_.grads_dtype(), Access::kRead, piece.range.num_elems()),
                        vector_spec(DType::kF64, Access::kWrite, 1)}},
          std::array{units_.main_grads(piece.unit).at(piece.range),
                     BufferRange{partials, place, place + 1}},
          units_.label(piece.unit, Phase::kOptimizer));
      ++place;
    }
    of_domains.push_back({partials, begin, place});
  }
  return of_domains;
}

BufferRange OptimizerTasks::sum_over_ranks(std::span<const BufferRange> of_domains) {
  const auto meets_others = [&](const ParameterDomain& domain) {
    return writer_.groups().size(domain.norm_group) > 1;
  };
  if (std::ranges::none_of(layout_.domains, meets_others)) {
    return writer_.builder().whole(of_domains.front().buffer);
  }
  const BufferId totals = writer_.step_buffer("squared_grad_norm", DType::kF64,
                                              std::ssize(of_domains), BufferRole::kScratch);
  for (size_t domain = 0; domain < of_domains.size(); ++domain) {
    const BufferRange& partials = of_domains[domain];
    const auto place = static_cast<int64_t>(domain);
    const BufferRange total{totals, place, place + 1};
    add_op({.op = std::string(kSumOp.name),
            .attributes = {},
            .operands = {vector_spec(DType::kF64, Access::kRead, partials.end - partials.begin),
                         vector_spec(DType::kF64, Access::kWrite, 1)}},
           std::array{partials, total}, clip_label(Phase::kOptimizer));
    writer_.all_reduce(total, layout_.domains[domain].norm_group, clip_label(Phase::kComm));
  }
  return writer_.builder().whole(totals);
}

void OptimizerTasks::clip() {
  const BufferRange squares = sum_over_ranks(add_squared_norms());
  ProgramBuilder& builder = writer_.builder();
  add_op({.op = std::string(kClipScaleOp.name),
          .attributes =
              to_attributes(ClipScaleAttributes{.max_norm = options_.optimizer.max_grad_norm}),
          .operands = {vector_spec(DType::kF64, Access::kRead, squares.end - squares.begin),
                       vector_spec(DType::kF32, Access::kWrite, 1),
                       vector_spec(DType::kF32, Access::kWrite, 1)}},
         std::array{squares, builder.whole(grad_norm_), builder.whole(grad_scale_)},
         clip_label(Phase::kOptimizer));
}

UpdateRule OptimizerTasks::rule_of(size_t unit) const {
  return update_rule(options_.optimizer.kind, layout_.units[unit].is_muon);
}

/// The op of an elementwise update and its attributes.
OpSpec OptimizerTasks::update_spec(size_t unit, const UpdateRun& run, bool has_param) const {
  const OptimizerOptions& optimizer = options_.optimizer;
  const double weight_decay = run.weight_decay ? optimizer.weight_decay : 0.0;
  const RateAttribute group{run.rate};
  switch (rule_of(unit)) {
    case UpdateRule::kAdamw:
      return {.op = std::string(kAdamwOp.name),
              .attributes = to_attributes(AdamwAttributes{.beta1 = optimizer.beta1,
                                                          .beta2 = optimizer.beta2,
                                                          .epsilon = optimizer.epsilon,
                                                          .weight_decay = weight_decay,
                                                          .has_param = has_param,
                                                          .group = group}),
              .operands = {}};
    case UpdateRule::kLion:
      return {.op = std::string(kLionOp.name),
              .attributes = to_attributes(LionAttributes{.beta1 = optimizer.beta1,
                                                         .beta2 = optimizer.beta2,
                                                         .weight_decay = weight_decay,
                                                         .has_param = has_param,
                                                         .group = group}),
              .operands = {}};
    case UpdateRule::kSgd:
      return {.op = std::string(kSgdOp.name),
              .attributes = to_attributes(SgdAttributes{.momentum = optimizer.momentum,
                                                        .nesterov = optimizer.nesterov,
                                                        .weight_decay = weight_decay,
                                                        .has_param = has_param,
                                                        .group = group}),
              .operands = {}};
    case UpdateRule::kMuon:
      break;
  }
  throw_internal_error("unit {} has no elementwise update", layout_.units[unit].name);
}

void OptimizerTasks::update() {
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    const ParameterUnit& facts = layout_.units[unit];
    if (facts.frozen) {
      continue;
    }
    const UnitRange own = units_.owned(unit);
    if (facts.is_muon) {
      muon_.update(unit, {.weights = main_weights_[unit],
                          .exp_avg = exp_avg_[unit],
                          .grad_scale = grad_scale_,
                          .scalars = scalars_});
    } else {
      for (const UpdateRun& run : facts.runs) {
        update_run(unit, run, intersect(own, {run.begin, run.end}));
      }
    }
    balance_range(unit, intersect(own, {facts.balance_begin, facts.num_elems}));
    publish(unit);
    average(unit);
  }
}

/// Brings updated weights to the ranks that hold copies.
void OptimizerTasks::publish(size_t unit) {
  if (!units_.gathers_updated_weights(unit)) {
    return;
  }
  // Updates write bf16 weights, and fp32 weights that are their own main weights. Copy the others.
  if (units_.dtype(unit) != DType::kBF16 && has_main_weights(unit)) {
    writer_.copy(main_weights_[unit].all(), units_.params(unit).at(units_.owned(unit)),
                 units_.label(unit, Phase::kOptimizer));
  }
  if (!units_.gathers_before_use(unit)) {
    units_.gather_updated_weights(unit);
  }
}

/// Nothing waits for averages, so they come behind what the gather of weights waits for.
void OptimizerTasks::average(size_t unit) {
  const UnitRange own = units_.owned(unit);
  if (options_.optimizer.ema == 0 || own.begin >= own.end) {
    return;
  }
  const int64_t num_elems = own.num_elems();
  add_op({.op = std::string(kAverageWeightsOp.name),
          .attributes = to_attributes(AverageWeightsAttributes{.decay = options_.optimizer.ema}),
          .operands = {vector_spec(DType::kF32, Access::kRead, num_elems),
                       vector_spec(DType::kF32, Access::kRead, 1),
                       vector_spec(DType::kF32, Access::kReadWrite, num_elems)}},
         std::array{main_weights_[unit].at(own), writer_.builder().whole(grad_scale_),
                    averages_[unit].all()},
         units_.label(unit, Phase::kOptimizer));
}

void OptimizerTasks::update_run(size_t unit, const UpdateRun& run, UnitRange range) {
  if (range.begin >= range.end) {
    return;
  }
  ProgramBuilder& builder = writer_.builder();
  const bool has_param = units_.dtype(unit) == DType::kBF16;
  const int64_t num_elems = range.num_elems();
  const int moments = num_moments(rule_of(unit), options_.optimizer);
  // The fourth number is for the rounding of moments.
  const BufferRange scalars = moments > 0 ? builder.whole(scalars_) : BufferRange{scalars_, 0, 3};
  OpSpec spec = update_spec(unit, run, has_param);
  spec.operands = {vector_spec(units_.grads_dtype(), Access::kRead, num_elems),
                   vector_spec(DType::kF32, Access::kRead, 1),
                   vector_spec(DType::kF32, Access::kRead, scalars.end)};
  std::vector<BufferRange> ranges{units_.main_grads(unit).at(range), builder.whole(grad_scale_),
                                  scalars};
  const auto add_state = [&](const UnitBuffer& state, DType dtype) {
    spec.operands.push_back(vector_spec(dtype, Access::kReadWrite, num_elems));
    ranges.push_back(state.at(range));
  };
  add_state(main_weights_[unit], DType::kF32);
  if (moments >= 1) {
    add_state(exp_avg_[unit], options_.optimizer.moments_dtype);
  }
  if (moments >= 2) {
    add_state(exp_avg_sq_[unit], options_.optimizer.moments_dtype);
  }
  if (has_param) {
    spec.operands.push_back(vector_spec(DType::kBF16, Access::kWrite, num_elems));
    ranges.push_back(units_.params(unit).at(range));
  }
  add_op(spec, ranges, units_.label(unit, Phase::kOptimizer));
}

void OptimizerTasks::balance_range(size_t unit, UnitRange range) {
  if (range.begin >= range.end) {
    return;
  }
  const bool has_param = units_.dtype(unit) == DType::kBF16;
  const int64_t num_elems = range.num_elems();
  OpSpec spec{.op = std::string(kBalanceUpdateOp.name),
              .attributes = to_attributes(BalanceUpdateAttributes{
                  .rate = options_.optimizer.bias_update_rate, .has_param = has_param}),
              .operands = {vector_spec(units_.grads_dtype(), Access::kRead, num_elems),
                           vector_spec(DType::kF32, Access::kRead, 1),
                           vector_spec(DType::kF32, Access::kReadWrite, num_elems)}};
  std::vector<BufferRange> ranges{units_.main_grads(unit).at(range),
                                  writer_.builder().whole(grad_scale_),
                                  main_weights_[unit].at(range)};
  if (has_param) {
    spec.operands.push_back(vector_spec(DType::kBF16, Access::kWrite, num_elems));
    ranges.push_back(units_.params(unit).at(range));
  }
  add_op(spec, ranges, units_.label(unit, Phase::kOptimizer));
}

}  // namespace braid
