#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backends/executor.h"
#include "parallel/parameter_layout.h"
#include "state/state_map.h"
#include "state/state_source.h"

namespace braid {

/// State crosses between host and devices in pieces of at most this many elements, so that the host
/// holds a few pieces whatever the size of the model. Large enough for copies and for sharing a
/// piece among cores, small enough to stay far below any model that does not fit.
inline constexpr int64_t kStatePieceElems = int64_t{16} << 20;

/// Fills what the ranks of `map` have of the model: parameters (rounded to nearest even if they are
/// bf16), main weights, optimizer state. Parts that are zero are zeroed on the device. Each value
/// is read from the source once, in units of `whole`, the layout of the model as one rank would
/// hold it. The host holds one piece, and its rounded copy. `executors` by rank of the map; null
/// for ranks of other processes, which fill their own: what only they have is not read.
void write_state(const StateSource& source, const ParameterLayout& whole, const StateMap& map,
                 std::span<Executor* const> executors, WorkerPool& workers);

/// The state of training programs that lies on executors, each element from the first rank that has
/// it: main weights where there are some, else parameters in fp32. All arguments must outlive it.
class DeviceState final : public StateSource {
 public:
  DeviceState(const StateMap& map, std::vector<Executor*> executors)
      : map_(map), executors_(std::move(executors)) {}

  void read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
            WorkerPool& workers) const override;
  HostBlock host_block(int64_t size_bytes) const override;

 private:
  const StateMap& map_;
  std::vector<Executor*> executors_;  // by rank of the map
};

}  // namespace braid
