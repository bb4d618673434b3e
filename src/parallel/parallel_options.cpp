#include "parallel/parallel_options.h"

#include "base/errors.h"

namespace braid {

std::string_view shard_kind_name(ShardKind kind) {
  switch (kind) {
    case ShardKind::kNone:
      return "none";
    case ShardKind::kOptimizer:
      return "optimizer";
    case ShardKind::kGradients:
      return "gradients";
    case ShardKind::kParameters:
      return "parameters";
  }
  throw_internal_error("no shard kind {}", static_cast<int>(kind));
}

}  // namespace braid
