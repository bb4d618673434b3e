#include "parallel/mesh.h"

#include <algorithm>

#include "base/errors.h"

namespace braid {
namespace {

void require_size(std::string_view dimension, int size) {
  if (size < 1) {
    throw_config_error("parallel.{} = {}: must be at least 1", dimension, size);
  }
}

void require_divisor(std::string_view option, int size, std::string_view whole_name, int whole) {
  if (size < 1 || whole % size != 0) {
    throw_config_error("parallel.{} = {}: must divide {} = {}", option, size, whole_name, whole);
  }
}

/// Positions begin, begin + step, ... below end.
struct Span {
  int begin = 0;
  int end = 0;
  int step = 1;
};

Span only(int position) {
  return {position, position + 1, 1};
}

/// The block of `size` consecutive positions that `position` is in.
Span block(int position, int size) {
  const int begin = position / size * size;
  return {begin, begin + size, 1};
}

/// What a group spans; `gradient` counts data * contexts + context.
struct GroupShape {
  GroupKind kind = GroupKind::kWorld;
  Span tensor;
  Span gradient;
  Span pipeline;
};

GroupShape shape_of(std::string_view name, const MeshSizes& sizes, const MeshPosition& at) {
  const int gradient = at.data * sizes.context + at.context;
  const int shards = sizes.gradient() / sizes.replicas;
  const Span all_tensor{0, sizes.tensor, 1};
  const Span all_gradient{0, sizes.gradient(), 1};
  const Span all_pipeline{0, sizes.pipeline, 1};
  const Span own_tensor = only(at.tensor);
  const Span own_gradient = only(gradient);
  const Span own_pipeline = only(at.pipeline);
  const auto along_gradient = [&](GroupKind kind, Span span) {
    return GroupShape{kind, own_tensor, span, own_pipeline};
  };

  if (name == "tensor") {
    return {GroupKind::kTensor, all_tensor, own_gradient, own_pipeline};
  }
  if (name == "tensor.kv") {
    return {GroupKind::kTensor, block(at.tensor, sizes.kv_replicas), own_gradient, own_pipeline};
  }
  if (name == "context") {
    return along_gradient(GroupKind::kContext, block(gradient, sizes.context));
  }
  if (name == "context.inner") {
    return along_gradient(GroupKind::kContext, block(gradient, sizes.context_inner));
  }
  if (name == "context.outer") {
    const int first = at.data * sizes.context + at.context % sizes.context_inner;
    return along_gradient(GroupKind::kContext,
                          {first, (at.data + 1) * sizes.context, sizes.context_inner});
  }
  if (name == "data") {
    return along_gradient(GroupKind::kData, {at.context, sizes.gradient(), sizes.context});
  }
  if (name == "gradient") {
    return along_gradient(GroupKind::kData, all_gradient);
  }
  if (name == "gradient.shard") {
    return along_gradient(GroupKind::kData, block(gradient, shards));
  }
  if (name == "gradient.replica") {
    return along_gradient(GroupKind::kData, {gradient % shards, sizes.gradient(), shards});
  }
  if (name == "pipeline.forward" || name == "pipeline.backward") {
    return {GroupKind::kPipeline, own_tensor, own_gradient, all_pipeline};
  }
  if (name == "embedding") {
    const Span ends{0, sizes.pipeline, std::max(sizes.pipeline - 1, 1)};
    return {GroupKind::kPipeline, own_tensor, own_gradient, ends};
  }
  if (name == "model") {
    return {GroupKind::kWorld, all_tensor, own_gradient, all_pipeline};
  }
  if (name == "model.shard") {
    return {GroupKind::kWorld, all_tensor, block(gradient, shards), all_pipeline};
  }
  if (name == "loss") {
    return {GroupKind::kWorld, own_tensor, all_gradient, all_pipeline};
  }
  check(name == "world", "no group is called {}", name);
  return {GroupKind::kWorld, all_tensor, all_gradient, all_pipeline};
}

}  // namespace

Mesh::Mesh(const MeshSizes& sizes) : sizes_(sizes) {
  require_size("tensor", sizes.tensor);
  require_size("context", sizes.context);
  require_size("data", sizes.data);
  require_size("pipeline", sizes.pipeline);
  require_divisor("context_inner", sizes.context_inner, "parallel.context", sizes.context);
  require_divisor("shard_replicas", sizes.replicas, "parallel.data * parallel.context",
                  sizes.gradient());
  check(sizes.kv_replicas >= 1 && sizes.tensor % sizes.kv_replicas == 0,
        "{} of {} tensor ranks hold the same key/value heads", sizes.kv_replicas, sizes.tensor);
}

MeshPosition Mesh::position(int rank) const {
  check(rank >= 0 && rank < num_ranks(), "rank {} of {}", rank, num_ranks());
  MeshPosition position;
  position.tensor = rank % sizes_.tensor;
  rank /= sizes_.tensor;
  position.context = rank % sizes_.context;
  rank /= sizes_.context;
  position.data = rank % sizes_.data;
  position.pipeline = rank / sizes_.data;
  return position;
}

int Mesh::rank_at(const MeshPosition& position) const {
  return ((position.pipeline * sizes_.data + position.data) * sizes_.context + position.context) *
             sizes_.tensor +
         position.tensor;
}

Group Mesh::group(std::string_view name, int rank) const {
  const GroupShape shape = shape_of(name, sizes_, position(rank));
  Group group{.name = std::string(name), .kind = shape.kind, .ranks = {}};
  for (int p = shape.pipeline.begin; p < shape.pipeline.end; p += shape.pipeline.step) {
    for (int g = shape.gradient.begin; g < shape.gradient.end; g += shape.gradient.step) {
      for (int t = shape.tensor.begin; t < shape.tensor.end; t += shape.tensor.step) {
        group.ranks.push_back(rank_at({.tensor = t,
                                       .context = g % sizes_.context,
                                       .data = g / sizes_.context,
                                       .pipeline = p}));
      }
    }
  }
  return group;
}

int Mesh::index_in(std::string_view name, int rank) const {
  const std::vector<int> ranks = group(name, rank).ranks;
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace braid
