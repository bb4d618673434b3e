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

/// No key of a run file sets these yet.
void check_experts(const MeshSizes& sizes) {
  check(sizes.expert >= 1 && sizes.expert_tensor >= 1 &&
            sizes.per_stage() % (sizes.expert * sizes.expert_tensor) == 0,
        "expert {} x expert tensor {}: must divide the {} ranks of a stage", sizes.expert,
        sizes.expert_tensor, sizes.per_stage());
  check(sizes.expert_replicas >= 1 && sizes.expert_data() % sizes.expert_replicas == 0,
        "{} copies of sharded experts: must divide the {} ranks that hold the same experts",
        sizes.expert_replicas, sizes.expert_data());
  check(sizes.expert_hosts >= 1 && sizes.expert % sizes.expert_hosts == 0,
        "{} hosts: must divide the {} ranks with different experts", sizes.expert_hosts,
        sizes.expert);
}

/// Positions begin, begin + step, ... that are below end.
struct Span {
  int begin = 0;
  int end = 0;
  int step = 1;
};

Span only(int position) {
  return {position, position + 1, 1};
}

/// The block of `size` consecutive positions that contains `position`.
Span block(int position, int size) {
  const int begin = position / size * size;
  return {begin, begin + size, 1};
}

/// Ranks of a stage. Each is numbered (outer * num_middle + middle) * num_inner + inner.
struct StageRanks {
  Span inner;
  Span middle;
  Span outer;
  int num_inner = 1;
  int num_middle = 1;
};

struct GroupShape {
  GroupKind kind = GroupKind::kWorld;
  StageRanks in_stage;
  Span pipeline;
};

/// `gradient` is data * contexts + context.
GroupShape dense_shape(std::string_view name, const MeshSizes& sizes, const MeshPosition& at) {
  const int gradient = at.data * sizes.context + at.context;
  const int shards = sizes.gradient() / sizes.replicas;
  const Span all_tensor{0, sizes.tensor, 1};
  const Span all_gradient{0, sizes.gradient(), 1};
  const Span all_pipeline{0, sizes.pipeline, 1};
  const Span own_tensor = only(at.tensor);
  const Span own_gradient = only(gradient);
  const Span own_pipeline = only(at.pipeline);
  const auto shape = [&](GroupKind kind, Span of_tensor, Span of_gradient, Span of_pipeline) {
    return GroupShape{kind,
                      {.inner = of_tensor,
                       .middle = of_gradient,
                       .outer = only(0),
                       .num_inner = sizes.tensor,
                       .num_middle = sizes.gradient()},
                      of_pipeline};
  };
  const auto along_gradient = [&](GroupKind kind, Span span) {
    return shape(kind, own_tensor, span, own_pipeline);
  };

  if (name == "tensor") {
    return shape(GroupKind::kTensor, all_tensor, own_gradient, own_pipeline);
  }
  if (name == "tensor.kv") {
    return shape(GroupKind::kTensor, block(at.tensor, sizes.kv_replicas), own_gradient,
                 own_pipeline);
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
  if (name == kForwardGroup || name == kBackwardGroup) {
    return shape(GroupKind::kPipeline, own_tensor, own_gradient, all_pipeline);
  }
  if (name == "embedding") {
    const Span ends{0, sizes.pipeline, std::max(sizes.pipeline - 1, 1)};
    return shape(GroupKind::kPipeline, own_tensor, own_gradient, ends);
  }
  if (name == "model") {
    return shape(GroupKind::kWorld, all_tensor, own_gradient, all_pipeline);
  }
  if (name == "model.shard") {
    return shape(GroupKind::kWorld, all_tensor, block(gradient, shards), all_pipeline);
  }
  if (name == "loss") {
    return shape(GroupKind::kWorld, own_tensor, all_gradient, all_pipeline);
  }
  check(name == "world", "no group is called {}", name);
  return shape(GroupKind::kWorld, all_tensor, all_gradient, all_pipeline);
}

GroupShape expert_shape(std::string_view name, const MeshSizes& sizes, const ExpertPosition& at,
                        int pipeline) {
  const int shards = sizes.expert_data() / sizes.expert_replicas;
  const Span all_tensor{0, sizes.expert_tensor, 1};
  const Span all_experts{0, sizes.expert, 1};
  const Span all_pipeline{0, sizes.pipeline, 1};
  const Span own_tensor = only(at.expert_tensor);
  const Span own_expert = only(at.expert);
  const Span own_data = only(at.expert_data);
  const Span own_pipeline = only(pipeline);
  const auto shape = [&](GroupKind kind, Span of_tensor, Span of_expert, Span of_data,
                         Span of_pipeline) {
    return GroupShape{kind,
                      {.inner = of_tensor,
                       .middle = of_expert,
                       .outer = of_data,
                       .num_inner = sizes.expert_tensor,
                       .num_middle = sizes.expert},
                      of_pipeline};
  };
  const auto along_data = [&](Span span) {
    return shape(GroupKind::kData, own_tensor, own_expert, span, own_pipeline);
  };

  if (name == "expert.exchange") {
    return shape(GroupKind::kExpert, all_tensor, all_experts, own_data, own_pipeline);
  }
  const int experts_of_host = sizes.expert / sizes.expert_hosts;
  if (name == "expert.host") {
    return shape(GroupKind::kExpert, all_tensor, block(at.expert, experts_of_host), own_data,
                 own_pipeline);
  }
  if (name == "expert.rail") {
    return shape(GroupKind::kExpert, own_tensor,
                 {at.expert % experts_of_host, sizes.expert, experts_of_host}, own_data,
                 own_pipeline);
  }
  if (name == "expert.tensor") {
    return shape(GroupKind::kTensor, all_tensor, own_expert, own_data, own_pipeline);
  }
  if (name == "expert.data") {
    return along_data({0, sizes.expert_data(), 1});
  }
  if (name == "expert.data.shard") {
    return along_data(block(at.expert_data, shards));
  }
  if (name == "expert.data.replica") {
    return along_data({at.expert_data % shards, sizes.expert_data(), shards});
  }
  if (name == "expert.model") {
    return shape(GroupKind::kWorld, all_tensor, all_experts, own_data, all_pipeline);
  }
  check(name == "expert.model.shard", "no group is called {}", name);
  return shape(GroupKind::kWorld, all_tensor, all_experts, block(at.expert_data, shards),
               all_pipeline);
}

GroupShape group_shape(std::string_view name, const Mesh& mesh, int rank) {
  const MeshPosition at = mesh.position(rank);
  return name.starts_with("expert")
             ? expert_shape(name, mesh.sizes(), mesh.expert_position(rank), at.pipeline)
             : dense_shape(name, mesh.sizes(), at);
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
  check_experts(sizes);
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

ExpertPosition Mesh::expert_position(int rank) const {
  check(rank >= 0 && rank < num_ranks(), "rank {} of {}", rank, num_ranks());
  const int in_stage = rank % sizes_.per_stage();
  const int per_tensor = in_stage / sizes_.expert_tensor;
  return {.expert_tensor = in_stage % sizes_.expert_tensor,
          .expert = per_tensor % sizes_.expert,
          .expert_data = per_tensor / sizes_.expert};
}

Group Mesh::group(std::string_view name, int rank) const {
  const GroupShape shape = group_shape(name, *this, rank);
  Group group{.name = std::string(name), .kind = shape.kind, .ranks = {}};
  const auto& [inner, middle, outer, num_inner, num_middle] = shape.in_stage;
  for (int p = shape.pipeline.begin; p < shape.pipeline.end; p += shape.pipeline.step) {
    for (int o = outer.begin; o < outer.end; o += outer.step) {
      for (int m = middle.begin; m < middle.end; m += middle.step) {
        for (int i = inner.begin; i < inner.end; i += inner.step) {
          group.ranks.push_back(p * sizes_.per_stage() + (o * num_middle + m) * num_inner + i);
        }
      }
    }
  }
  return group;
}

int Mesh::first_in(std::string_view name, int rank) const {
  const GroupShape shape = group_shape(name, *this, rank);
  const auto& [inner, middle, outer, num_inner, num_middle] = shape.in_stage;
  return shape.pipeline.begin * sizes_.per_stage() +
         (outer.begin * num_middle + middle.begin) * num_inner + inner.begin;
}

int Mesh::index_in(std::string_view name, int rank) const {
  const std::vector<int> ranks = group(name, rank).ranks;
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace braid
