#pragma once

#include <cstddef>
#include <cstdint>

#include "model/parameter_shard.h"

namespace braid {

/// Calls visit(full, local) for every element of a full tensor that the shard has.
template <class Visit>
void for_each_shard_element(const Shape& full_shape, const ParameterShard& shard,
                            const Visit& visit) {
  const int64_t pitch = full_shape.num_elems() / full_shape[0];
  for (const ElementBlock& block : element_blocks(full_shape, shard)) {
    for (int64_t i = 0; i < block.num_elems(); ++i) {
      visit(
          static_cast<size_t>(block.full_begin + i / block.run_elems * pitch + i % block.run_elems),
          static_cast<size_t>(block.local_begin + i));
    }
  }
}

}  // namespace braid
