#include "parallel/expand.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace braid {
namespace {

/// Value names with "#2", "#3", ... behind repeated ones: a recomputed or summed gradient may have
/// the name of another.
std::vector<std::string> unique_names(const std::vector<Value>& values) {
  std::unordered_map<std::string, int> seen;
  std::vector<std::string> names;
  for (const Value& value : values) {
    const int count = ++seen[value.name];
    names.push_back(count == 1 ? value.name : fmt::format("{}#{}", value.name, count));
  }
  return names;
}

}  // namespace

StageExpander::StageExpander(ProgramBuilder& builder, const StageGraph& graph,
                             const ParameterLayout& layout, const Bindings& bindings,
                             std::string prefix)
    : builder_(builder),
      graph_(graph),
      layout_(layout),
      bindings_(bindings),
      prefix_(std::move(prefix)),
      value_names_(unique_names(graph.values)) {}

void StageExpander::add_forward(int32_t microbatch, StreamId stream) {
  for (const Node& node : graph_.forward) {
    add_node(node, microbatch, stream);
  }
}

void StageExpander::add_backward(int32_t microbatch, StreamId stream) {
  for (const Node& node : graph_.backward) {
    add_node(node, microbatch, stream);
  }
}

void StageExpander::add_node(const Node& node, int32_t microbatch, StreamId stream) {
  std::vector<BufferRange> ranges;
  for (const ValueId value : node.operands) {
    ranges.push_back(range_of(value, microbatch));
  }
  const Label label{.phase = node.phase,
                    .microbatch = microbatch,
                    .virtual_stage = 0,
                    .layer = node.layer,
                    .site = builder_.site(node.site)};
  builder_.add_task(first_accumulation_overwrites(node), ranges, stream, label);
}

BufferRange StageExpander::range_of(ValueId id, int32_t microbatch) {
  const Value& value = graph_.value(id);
  switch (value.kind) {
    case ValueKind::kParam:
    case ValueKind::kMainGrad: {
      const std::vector<BufferId>& units =
          value.kind == ValueKind::kParam ? bindings_.params : bindings_.main_grads;
      const ParameterSlot& slot = layout_.slot(value.name);
      check(slot.unit < units.size(), "no buffer for unit {} of {}", slot.unit, value.name);
      return {units[slot.unit], slot.begin, slot.end};
    }
    case ValueKind::kInput:
    case ValueKind::kOutput: {
      const auto found = bindings_.io.find(value.name);
      check(found != bindings_.io.end(), "no buffer for {}", value.name);
      const int64_t begin = microbatch * found->second.stride_elems;
      return {found->second.buffer, begin, begin + value.shape.num_elems()};
    }
    case ValueKind::kActivation:
      return builder_.whole(activation(id, microbatch));
  }
  throw_internal_error("value {} has no kind", value.name);
}

BufferId StageExpander::activation(ValueId id, int32_t microbatch) {
  const uint64_t key = static_cast<uint64_t>(microbatch) << 32 | id.value;
  const auto [entry, inserted] = activations_.try_emplace(key, BufferId());
  if (inserted) {
    const Value& value = graph_.value(id);
    entry->second = builder_.add_buffer(
        {.name = fmt::format("{}m{}.{}", prefix_, microbatch, value_names_[id.index()]),
         .dtype = value.dtype,
         .shape = value.shape,
         .role = BufferRole::kActivation,
         .lifetime = Lifetime::kStep});
  }
  return entry->second;
}

OpSpec StageExpander::first_accumulation_overwrites(const Node& node) {
  OpSpec spec = node.spec;
  size_t num_main_grads = 0;
  size_t num_new = 0;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (graph_.value(node.operands[i]).kind == ValueKind::kMainGrad) {
      ++num_main_grads;
      num_new += accumulated_.insert(node.operands[i]).second ? 1 : 0;
    }
  }
  if (num_new == 0) {
    return spec;
  }
  check(num_new == num_main_grads, "op {} at {} would overwrite one gradient and add to another",
        spec.op, node.site);
  for (Attribute& attribute : spec.attributes) {
    if (attribute.name == "accumulate") {
      attribute.value = false;
    }
  }
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (graph_.value(node.operands[i]).kind == ValueKind::kMainGrad) {
      spec.operands[i].access = Access::kWrite;
    }
  }
  return spec;
}

}  // namespace braid
