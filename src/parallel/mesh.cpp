#include "parallel/mesh.h"

#include "base/errors.h"

namespace braid {
namespace {

void require_size(std::string_view dimension, int size) {
  if (size < 1) {
    throw_config_error("parallel.{} = {}: must be at least 1", dimension, size);
  }
}

}  // namespace

Mesh::Mesh(const MeshSizes& sizes) : sizes_(sizes) {
  require_size("tensor", sizes.tensor);
  require_size("context", sizes.context);
  require_size("data", sizes.data);
  require_size("pipeline", sizes.pipeline);
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

Group Mesh::group_along(int rank, int MeshPosition::*dimension, int size, GroupKind kind,
                        std::string_view name) const {
  Group group{.name = std::string(name), .kind = kind, .ranks = {}};
  MeshPosition member = position(rank);
  for (int i = 0; i < size; ++i) {
    member.*dimension = i;
    group.ranks.push_back(rank_at(member));
  }
  return group;
}

Group Mesh::data_group(int rank) const {
  return group_along(rank, &MeshPosition::data, sizes_.data, GroupKind::kData, "data");
}

Group Mesh::tensor_group(int rank) const {
  return group_along(rank, &MeshPosition::tensor, sizes_.tensor, GroupKind::kTensor, "tensor");
}

Group Mesh::context_group(int rank) const {
  return group_along(rank, &MeshPosition::context, sizes_.context, GroupKind::kContext, "context");
}

Group Mesh::pipeline_group(int rank) const {
  return group_along(rank, &MeshPosition::pipeline, sizes_.pipeline, GroupKind::kPipeline,
                     "pipeline");
}

}  // namespace braid
