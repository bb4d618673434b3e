#include "state/state_source.h"

#include <memory>

#include "backends/host_arena.h"

namespace braid {

HostBlock StateSource::host_block(int64_t size_bytes) const {
  const auto arena = std::make_shared<HostArena>(size_bytes, "a piece of the model's state");
  return {{arena->data(), static_cast<size_t>(size_bytes)}, arena};
}

}  // namespace braid
