#include "parallel/fp8_parts.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>

#include "ops/attributes.h"
#include "ops/op.h"
#include "ops/operand_checker.h"
#include "ops/quantize.h"

namespace braid {
namespace {

const Shape& shape_of(const Node& maker) {
  return maker.spec.operands[0].shape;
}

int64_t block_of(const Node& maker) {
  return attributes_of<QuantizeAttributes>(maker.spec).block;
}

/// Whether the copy by columns is the transposed copy by rows, so that one gather brings both.
bool has_one_scale_both_ways(const Node& maker) {
  const auto attributes = attributes_of<QuantizeAttributes>(maker.spec);
  return (attributes.square || attributes.block == 0) &&
         maker.spec.operands[1].dtype == DType::kF8E4M3;
}

OperandSpec magnitude_spec(const Node& maker, Access access) {
  return {.dtype = DType::kI32,
          .access = access,
          .shape = magnitude_shape(shape_of(maker)[0], shape_of(maker)[1], block_of(maker))};
}

}  // namespace

Fp8Parts::Fp8Parts(TaskWriter& writer, const ParameterLayout& layout, UnitBuffers& units,
                   std::span<const StageGraph* const> graphs, const Tallies& tallies)
    : writer_(writer), layout_(layout), units_(units), tallies_(tallies) {
  find_makers(graphs);
  for (size_t domain = 0; domain < layout_.domains.size(); ++domain) {
    add_domain(domain);
  }
}

void Fp8Parts::find_makers(std::span<const StageGraph* const> graphs) {
  for (const StageGraph* const graph : graphs) {
    for (const Node& node : graph->weights) {
      const ParameterSlot& slot = layout_.slot(graph->value(node.operands[0]).name);
      check(!units_.gathers_copies(slot.unit) || has_one_scale_both_ways(node),
            "op {} at {}: ranks cannot gather these copies", node.spec.op, node.site);
      makers_.emplace(slot.parameter, Weight{.graph = graph, .maker = &node, .slot = &slot});
    }
  }
}

void Fp8Parts::add_domain(size_t domain) {
  std::vector<Weight> weights;
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    if (layout_.units[unit].domain != domain || !units_.gathers_copies(unit)) {
      continue;
    }
    for (const size_t parameter : layout_.units[unit].slots) {
      if (const auto found = makers_.find(parameter); found != makers_.end()) {
        weights.push_back(found->second);
      }
    }
  }
  if (weights.empty()) {
    return;
  }
  find_magnitudes(weights, layout_.domains[domain]);
  for (auto begin = weights.begin(); begin != weights.end();) {
    const size_t unit = begin->slot->unit;
    const auto end =
        std::find_if(begin, weights.end(), [&](const Weight& it) { return it.slot->unit != unit; });
    std::for_each(begin, end, [&](const Weight& weight) { add_scales(weight); });
    add_parts(unit, {begin, end});
    begin = end;
  }
}

UnitRange Fp8Parts::own_part(const Weight& weight) const {
  const UnitRange own = units_.owned(weight.slot->unit);
  return {std::max(own.begin, weight.slot->begin), std::min(own.end, weight.slot->end)};
}

/// All in one buffer, so that one call reduces them.
void Fp8Parts::find_magnitudes(std::vector<Weight>& weights, const ParameterDomain& domain) {
  int64_t count = 0;
  for (Weight& weight : weights) {
    weight.magnitudes.begin = count;
    count += magnitude_spec(*weight.maker, Access::kWrite).shape.num_elems();
    weight.magnitudes.end = count;
  }
  const BufferId buffer = writer_.step_buffer(fmt::format("fp8.magnitudes.{}", domain.shard_group),
                                              DType::kI32, count, BufferRole::kScratch);
  for (Weight& weight : weights) {
    weight.magnitudes.buffer = buffer;
    const UnitRange part = own_part(weight);
    if (part.begin >= part.end) {
      writer_.fill_zero(weight.magnitudes, label(weight));
      continue;
    }
    add(kPartMagnitudesOp.name, weight, to_attributes(part_attributes(weight, part)),
        std::array{units_.params(weight.slot->unit).at(part), weight.magnitudes},
        {part_spec(weight, part), magnitude_spec(*weight.maker, Access::kWrite)});
  }
  writer_.all_reduce_max(writer_.builder().whole(buffer),
                         domain.splits_shards() ? domain.gradient_group : domain.shard_group,
                         {.phase = Phase::kComm, .site = writer_.builder().site("fp8.magnitudes")});
}

void Fp8Parts::add_scales(const Weight& weight) {
  const Node& maker = *weight.maker;
  const QuantizeOperands at(attributes_of<QuantizeAttributes>(maker.spec));
  const bool has_column = at.column >= 0;
  std::vector<OperandSpec> operands{magnitude_spec(maker, Access::kRead)};
  std::vector<BufferRange> ranges{weight.magnitudes};
  for (const int copy : {at.row, at.column}) {
    if (copy < 0) {
      continue;
    }
    const auto scales = static_cast<size_t>(copy) + 1;
    const Value& value = weight.graph->value(maker.operands[scales]);
    operands.push_back(maker.spec.operands[scales]);
    ranges.push_back(writer_.builder().whole(writer_.step_buffer(
        "fp8." + value.name, value.dtype, value.shape.num_elems(), BufferRole::kParam)));
  }
  add(kScalesOfMagnitudesOp.name, weight,
      to_attributes(MagnitudeScalesAttributes{.rows = shape_of(maker)[0],
                                              .columns = shape_of(maker)[1],
                                              .block = block_of(maker),
                                              .has_column = has_column}),
      ranges, operands);
  scales_[weight.slot->parameter] = {ranges[1], has_column ? ranges[2] : BufferRange{}};
}

/// Elements between and behind weights are gathered too, so they are zero.
void Fp8Parts::add_parts(size_t unit, std::span<const Weight> weights) {
  const UnitRange own = units_.owned(unit);
  const UnitBuffer part{writer_.step_buffer("fp8." + layout_.units[unit].name, DType::kF8E4M3,
                                            own.num_elems(), BufferRole::kParam),
                        own};
  int64_t covered = own.begin;
  const auto zero_until = [&](int64_t end, const Weight& near) {
    if (covered < end) {
      writer_.fill_zero(part.at({covered, end}), label(near));
    }
  };
  for (const Weight& weight : weights) {
    const UnitRange its = own_part(weight);
    if (its.begin >= its.end) {
      continue;
    }
    zero_until(its.begin, weight);
    covered = its.end;
    add_part(weight, its, part.at(its));
  }
  zero_until(own.end, weights.back());
  units_.gather_copies(unit, part.buffer);
}

void Fp8Parts::add_part(const Weight& weight, UnitRange its, BufferRange to) {
  QuantizePartAttributes attributes = part_attributes(weight, its);
  std::vector<BufferRange> ranges{units_.params(weight.slot->unit).at(its), weight.magnitudes, to};
  std::vector<OperandSpec> operands{
      part_spec(weight, its),
      magnitude_spec(*weight.maker, Access::kRead),
      {.dtype = DType::kF8E4M3, .access = Access::kWrite, .shape = {its.num_elems()}}};
  if (has_tally(weight.maker->spec)) {
    attributes.watch = {true};
    ranges.push_back(tallies_.at(weight.graph->value(weight.maker->operands.back()).name));
    operands.push_back(tally_spec(Fp8Tally::kSize));
  }
  add(kQuantizePartOp.name, weight, to_attributes(attributes), ranges, operands);
}

QuantizePartAttributes Fp8Parts::part_attributes(const Weight& weight, UnitRange part) const {
  return {.rows = shape_of(*weight.maker)[0],
          .columns = shape_of(*weight.maker)[1],
          .block = block_of(*weight.maker),
          .begin = part.begin - weight.slot->begin,
          .rounds = {units_.rounds_main_weights(weight.slot->unit)}};
}

OperandSpec Fp8Parts::part_spec(const Weight& weight, UnitRange part) const {
  return {.dtype = units_.dtype(weight.slot->unit),
          .access = Access::kRead,
          .shape = {part.num_elems()}};
}

Label Fp8Parts::label(const Weight& weight) const {
  return {.phase = Phase::kForward, .site = writer_.builder().site(weight.maker->site)};
}

void Fp8Parts::add(std::string_view op, const Weight& weight, std::vector<Attribute> attributes,
                   std::span<const BufferRange> ranges, std::vector<OperandSpec> operands) {
  writer_.builder().add_task({std::string(op), std::move(attributes), std::move(operands)}, ranges,
                             writer_.stream(), label(weight));
}

}  // namespace braid
