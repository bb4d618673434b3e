#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backends/host_block.h"
#include "base/worker_pool.h"

namespace braid {

/// The parts of a unit of parameters in training. Each part is one flat fp32 array per unit, with
/// the positions of ParameterLayout.
enum class StatePart : uint8_t { kWeights, kExpAvg, kExpAvgSq, kEma };

inline constexpr std::array kStateParts = {StatePart::kWeights, StatePart::kExpAvg,
                                           StatePart::kExpAvgSq, StatePart::kEma};

/// A source of weights and optimizer state: fresh, from a checkpoint, or from a device. It is read
/// piece by piece, so that no one has to hold all of it.
class StateSource {
 public:
  virtual ~StateSource() = default;

  /// Whether the whole part is zeros, so that it need not be read. Of kEma: whether there are no
  /// averages, so that they begin with the weights.
  virtual bool is_zero(StatePart) const { return false; }

  /// Reads elements [begin, begin + out.size()) of the unit's array; those between parameters are
  /// 0. May share the work among `workers`. Throws InternalError for a range outside the unit, and
  /// what the source throws.
  virtual void read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
                    WorkerPool& workers) const = 0;

  /// Memory into which `read` is fastest. It must not outlive the source.
  virtual HostBlock host_block(int64_t size_bytes) const;
};

}  // namespace braid
