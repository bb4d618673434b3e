#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/host_block.h"
#include "base/worker_pool.h"

namespace braid {

/// What a unit of parameters has in training. Each part is one flat fp32 array per unit, in the
/// places that ParameterLayout gives.
enum class StatePart : uint8_t { kWeights, kExpAvg, kExpAvgSq };

inline constexpr std::array kStateParts = {StatePart::kWeights, StatePart::kExpAvg,
                                           StatePart::kExpAvgSq};

/// Weights and optimizer state, wherever they come from: fresh, from a checkpoint, from a device.
/// Asked for piece by piece, so that nobody has to hold all of it.
class StateSource {
 public:
  virtual ~StateSource() = default;

  /// Whether the whole part is zeros, so that nobody needs to read it.
  virtual bool is_zero(StatePart) const { return false; }

  /// Elements [begin, begin + out.size()) of the unit's array; those between parameters are 0. May
  /// share the work among `workers`. Throws InternalError for a range outside the unit, and what
  /// the source throws.
  virtual void read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
                    WorkerPool& workers) const = 0;

  /// Memory into which `read` is fastest. It must not outlive the source.
  virtual HostBlock host_block(int64_t size_bytes) const;
};

}  // namespace braid
