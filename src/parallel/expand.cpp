#include "parallel/expand.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/elementwise.h"
#include "ops/operand_checker.h"
#include "ops/quantize.h"
#include "ops/transpose.h"
#include "parallel/fp8_parts.h"
#include "parallel/unit_buffers.h"

namespace braid {
namespace {

/// Appends "#2", "#3", ... to repeated value names: a recomputed or summed gradient may have the
/// same name as another value.
std::vector<std::string> unique_names(const std::vector<Value>& values) {
  std::unordered_map<std::string, int> seen;
  std::vector<std::string> names;
  for (const Value& value : values) {
    const int count = ++seen[value.name];
    names.push_back(count == 1 ? value.name : fmt::format("{}#{}", value.name, count));
  }
  return names;
}

bool belongs_to(const Node& node, BackwardPart part) {
  return part == BackwardPart::kAll ||
         (node.phase == Phase::kWgrad) == (part == BackwardPart::kWgrad);
}

bool is_one_of(const std::vector<Node>& nodes, const Node& node) {
  const std::less<> before;
  return !before(&node, nodes.data()) && before(&node, nodes.data() + nodes.size());
}

/// Of a node that makes the copies of a weight.
bool has_column(const Node& maker) {
  return attributes_of<QuantizeAttributes>(maker.spec).column;
}

}  // namespace

StageExpander::StageExpander(ProgramBuilder& builder, const StageGraph& graph,
                             const ParameterLayout& layout, const Bindings& bindings, Place place)
    : builder_(builder),
      graph_(graph),
      layout_(layout),
      bindings_(bindings),
      place_(std::move(place)),
      value_names_(unique_names(graph.values)),
      slots_(graph.values.size()) {
  for (const Node& node : graph.weights) {
    for (size_t i = 1; i < node.operands.size(); ++i) {
      if (graph.value(node.operands[i]).kind == ValueKind::kQuantizedParam) {
        weight_nodes_.emplace(node.operands[i], &node);
      }
    }
  }
}

void StageExpander::add_forward(int32_t microbatch, StreamId stream) {
  for (const Node& node : graph_.forward) {
    if (!is_made(node)) {
      add_node(node, microbatch, stream);
    }
  }
}

bool StageExpander::is_made(const Node& node) const {
  bool made = false;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (writes(node.spec.operands[i].access)) {
      made = of_weights_.contains(node.operands[i]);
      if (!made) {
        break;
      }
    }
  }
  return made;
}

void StageExpander::add_backward(int32_t microbatch, StreamId stream, BackwardPart part) {
  for (const Node& node : graph_.backward) {
    if (belongs_to(node, part)) {
      add_node(node, microbatch, stream);
    }
  }
}

BufferId StageExpander::add_copy(const Node& maker, size_t operand, BufferId source) {
  const Buffer& from = builder_.program().buffers[source.index()];
  const std::string prefix = from.lifetime == Lifetime::kPersistent ? "fp8" : from.name;
  const Value& value = graph_.value(maker.operands[operand]);
  return builder_.add_buffer({.name = fmt::format("{}.{}", prefix, value.name),
                              .dtype = value.dtype,
                              .shape = value.shape,
                              .role = BufferRole::kParam,
                              .lifetime = Lifetime::kStep});
}

bool StageExpander::find_gathered(const Node& maker, ValueId copy, const Node& reader,
                                  int32_t microbatch, StreamId stream) {
  const ParameterSlot& slot = layout_.slot(graph_.value(maker.operands[0]).name);
  if (bindings_.fp8_parts == nullptr || !bindings_.fp8_parts->has(slot)) {
    return false;
  }
  const BufferRange rows{bindings_.units->weights(slot.unit), slot.begin, slot.end};
  const WeightScales& scales = bindings_.fp8_parts->scales(slot);
  weight_copies_[maker.operands[1]] = rows;
  weight_copies_[maker.operands[2]] = scales.first;
  if (has_column(maker)) {
    weight_copies_[maker.operands[4]] = scales.second;
    const bool is_new = copied_from_[&maker] != rows.buffer;
    if (copy == maker.operands[3] && is_new) {
      add_transposed(maker, rows, reader, microbatch, stream);
    }
  }
  return true;
}

void StageExpander::add_transposed(const Node& maker, BufferRange rows, const Node& reader,
                                   int32_t microbatch, StreamId stream) {
  copied_from_[&maker] = rows.buffer;
  const BufferRange columns = builder_.whole(add_copy(maker, 3, rows.buffer));
  weight_copies_[maker.operands[3]] = columns;
  OperandSpec from = maker.spec.operands[1];
  from.access = Access::kRead;
  builder_.add_task({std::string(kTransposeOp.name), {}, {from, maker.spec.operands[3]}},
                    std::array{rows, columns}, stream,
                    {.phase = reader.phase,
                     .microbatch = microbatch,
                     .virtual_stage = place_.virtual_stage,
                     .layer = maker.layer,
                     .site = builder_.site(maker.site)});
}

void StageExpander::prepare_weights(const Node& node, int32_t microbatch, StreamId stream) {
  for (const ValueId id : node.operands) {
    if (graph_.value(id).kind != ValueKind::kQuantizedParam) {
      continue;
    }
    const Node* const maker = weight_nodes_.at(id);
    if (find_gathered(*maker, id, node, microbatch, stream)) {
      continue;
    }
    const BufferId weights = range_of(maker->operands[0], microbatch).buffer;
    const auto [source, is_new] = copied_from_.try_emplace(maker, weights);
    if (!is_new && source->second == weights) {
      continue;
    }
    source->second = weights;
    for (size_t i = 1; i < maker->operands.size(); ++i) {
      if (graph_.value(maker->operands[i]).kind == ValueKind::kQuantizedParam) {
        weight_copies_[maker->operands[i]] = builder_.whole(add_copy(*maker, i, weights));
      }
    }
    Node here = *maker;
    read_main_weights(here);
    here.phase = node.phase == Phase::kForward ? Phase::kForward : Phase::kDgrad;
    add_node(here, microbatch, stream);
  }
}

void StageExpander::read_main_weights(Node& maker) const {
  const size_t unit = layout_.slot(graph_.value(maker.operands[0]).name).unit;
  if (bindings_.units->has_only_main_weights(unit)) {
    auto attributes = attributes_of<QuantizeAttributes>(maker.spec);
    attributes.rounds.main_weights = bindings_.units->rounds_main_weights(unit);
    maker.spec.attributes = to_attributes(attributes);
    maker.spec.operands[0].dtype = bindings_.units->dtype(unit);
  }
}

/// Whether it is one of StageGraph::weights. Others read copies, or have none.
bool StageExpander::makes_weight_copies(const Node& node) const {
  return node.operands.size() > 1 && writes(node.spec.operands[1].access) &&
         weight_nodes_.contains(node.operands[1]);
}

void StageExpander::add_node(const Node& node, int32_t microbatch, StreamId stream) {
  if (!weight_nodes_.empty() && !makes_weight_copies(node)) {
    prepare_weights(node, microbatch, stream);
  }
  ranges_.clear();
  wide_.clear();
  size_t num_gradients = 0;
  size_t num_first = 0;  // that the node overwrites
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const ValueId id = node.operands[i];
    if (graph_.value(id).kind == ValueKind::kMainGrad) {
      const GradientPlace place = gradient_place(node, i, microbatch);
      ranges_.push_back(place.range);
      ++num_gradients;
      num_first += place.is_first || place.is_wide ? 1 : 0;
      if (place.is_wide) {
        wide_.push_back(place);
      }
    } else {
      ranges_.push_back(range_of(id, microbatch));
    }
  }
  const bool is_of_graph = is_one_of(graph_.forward, node) || is_one_of(graph_.backward, node);
  const Prepared* const known = is_of_graph ? &prepared(node) : nullptr;
  const Label label{.phase = node.phase,
                    .microbatch = microbatch,
                    .virtual_stage = place_.virtual_stage,
                    .layer = node.layer,
                    .site = known != nullptr ? known->site : builder_.site(node.site)};
  if (known != nullptr && num_first == 0) {
    builder_.add_task(known->spec, ranges_, stream, label);
  } else {
    builder_.add_task(spec_of(node, num_gradients, num_first), ranges_, stream, label);
  }
  add_wide_gradients(stream, label);
}

StageExpander::GradientPlace StageExpander::gradient_place(const Node& node, size_t operand,
                                                           int32_t microbatch) {
  const ValueId id = node.operands[operand];
  const auto [range, first] = bindings_.units->gradient(slot_of(id));
  const DType dtype = node.spec.operands[operand].dtype;
  if (dtype == builder_.program().buffers[range.buffer.index()].dtype) {
    return {.range = range, .main_grad = range, .is_first = first};
  }
  const std::string name =
      fmt::format("{}m{}.{}.wide_grad", place_.prefix, microbatch, graph_.value(id).name);
  const int count = ++wide_names_[name];
  const BufferId wide =
      builder_.add_buffer({.name = count == 1 ? name : fmt::format("{}#{}", name, count),
                           .dtype = dtype,
                           .shape = {range.end - range.begin},
                           .role = BufferRole::kScratch,
                           .lifetime = Lifetime::kStep});
  return {.range = builder_.whole(wide), .main_grad = range, .is_first = first, .is_wide = true};
}

void StageExpander::add_wide_gradients(StreamId stream, const Label& label) {
  for (const GradientPlace& place : wide_) {
    const Shape shape{place.range.end - place.range.begin};
    const OperandSpec wide{.dtype = builder_.program().buffers[place.range.buffer.index()].dtype,
                           .shape = shape};
    const OperandSpec narrow{
        .dtype = builder_.program().buffers[place.main_grad.buffer.index()].dtype,
        .access = accumulate_access(!place.is_first),
        .shape = shape};
    const OpDefinition& op = place.is_first ? kCastOp : kAccumulateOp;
    builder_.add_task({std::string(op.name), {}, {wide, narrow}},
                      std::array{place.range, place.main_grad}, stream, label);
  }
}

const StageExpander::Prepared& StageExpander::prepared(const Node& node) {
  const auto found = prepared_.find(&node);
  return found != prepared_.end()
             ? found->second
             : prepared_.emplace(&node, Prepared{spec_of(node, 0, 0), builder_.site(node.site)})
                   .first->second;
}

const ParameterSlot& StageExpander::slot_of(ValueId parameter) {
  const ParameterSlot*& slot = slots_[parameter.index()];
  slot = slot == nullptr ? &layout_.slot(graph_.value(parameter).name) : slot;
  return *slot;
}

BufferRange StageExpander::range_of(ValueId id, int32_t microbatch) {
  const Value& value = graph_.value(id);
  switch (value.kind) {
    case ValueKind::kParam: {
      const ParameterSlot& slot = slot_of(id);
      return {bindings_.units->weights(slot.unit), slot.begin, slot.end};
    }
    case ValueKind::kInput:
    case ValueKind::kOutput:
    case ValueKind::kCache: {
      const auto found = bindings_.io.find(value.name);
      check(found != bindings_.io.end(), "no buffer for {}", value.name);
      const int64_t begin = found->second.begin + microbatch * found->second.stride_elems;
      return {found->second.buffer, begin, begin + value.shape.num_elems()};
    }
    case ValueKind::kActivation:
      return builder_.whole(buffer(id, microbatch));
    case ValueKind::kOfWeights: {
      const auto [entry, inserted] = of_weights_.try_emplace(id, BufferId());
      if (inserted) {
        entry->second = builder_.add_buffer({.name = place_.prefix + value.name,
                                             .dtype = value.dtype,
                                             .shape = value.shape,
                                             .role = BufferRole::kScratch,
                                             .lifetime = Lifetime::kStep});
      }
      return builder_.whole(entry->second);
    }
    case ValueKind::kQuantizedParam:
      return weight_copies_.at(id);
    case ValueKind::kTally:
      return bindings_.tallies.at(value.name);
    case ValueKind::kMainGrad:
      break;
  }
  throw_internal_error("value {} has no place", value.name);
}

BufferId StageExpander::buffer(ValueId activation, int32_t microbatch) {
  BufferId& buffer = place_of(activation, microbatch);
  if (!buffer.valid()) {
    const Value& value = graph_.value(activation);
    std::string name = place_.prefix;
    name.append("m").append(std::to_string(microbatch)).append(".");
    name.append(value_names_[activation.index()]);
    buffer = builder_.add_buffer({.name = std::move(name),
                                  .dtype = value.dtype,
                                  .shape = value.shape,
                                  .role = BufferRole::kActivation,
                                  .lifetime = Lifetime::kStep});
  }
  return buffer;
}

BufferId& StageExpander::place_of(ValueId activation, int32_t microbatch) {
  std::vector<BufferId>& buffers = activations_[microbatch];
  buffers.resize(graph_.values.size());
  return buffers[activation.index()];
}

void StageExpander::bind(ValueId activation, int32_t microbatch, BufferId buffer) {
  BufferId& place = place_of(activation, microbatch);
  check(!place.valid(), "value {} of microbatch {} has a buffer already",
        graph_.value(activation).name, microbatch);
  place = buffer;
}

OpSpec StageExpander::spec_of(const Node& node, size_t num_gradients, size_t num_first) {
  OpSpec spec = node.spec;
  for (Attribute& attribute : spec.attributes) {
    if (attribute.name == "group") {
      const auto index = static_cast<size_t>(std::get<int64_t>(attribute.value));
      check(index < place_.groups.size(), "op {} at {}: no group of the program for group {}",
            spec.op, node.site, index);
      attribute.value = static_cast<int64_t>(place_.groups[index].index());
    }
    if (attribute.name == "accumulate" && num_first > 0) {
      attribute.value = false;
    }
  }
  if (num_first == 0) {
    return spec;
  }
  check(num_first == num_gradients, "op {} at {} would overwrite one gradient and add to another",
        spec.op, node.site);
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (graph_.value(node.operands[i]).kind == ValueKind::kMainGrad) {
      spec.operands[i].access = Access::kWrite;
    }
  }
  return spec;
}

}  // namespace braid
