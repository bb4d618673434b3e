#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "backends/executor.h"
#include "base/dtype.h"
#include "parallel/parameter_layout.h"
#include "state/state_map.h"
#include "state/state_source.h"

namespace braid {

/// The maximum piece, in elements, for transfers of state between host and devices: the host holds
/// a few pieces, for any size of the model. Large enough for efficient copies and for sharing a
/// piece among cores, and small compared with any model that does not fit.
inline constexpr int64_t kStatePieceElems = int64_t{16} << 20;

/// Fills the ranks of `map` with their parts of the model: parameters, main weights, optimizer
/// state, rounded to nearest even where a buffer is bf16. Parts that are zero are zeroed on the
/// device; averages of weights that the source does not have are the weights. Each value is read
/// from the source once, in units of `whole`, the layout of the model as one rank would hold it.
/// The host holds one piece and its rounded copy. `executors` are by rank of the map; null for
/// ranks of other processes, which fill their own: values that only they hold are not read.
void write_state(const StateSource& source, const ParameterLayout& whole, const StateMap& map,
                 std::span<Executor* const> executors, WorkerPool& workers);

/// fp32 or bf16 elements as fp32. `elements` may be the last bytes of `out`.
void widen_elements(DType dtype, std::span<const std::byte> elements, std::span<float> out);

/// Elements [begin, begin + out.size()) of a buffer of the executor, which are fp32 or bf16.
void read_elements(Executor& executor, const StateBufferFacts& buffer, int64_t begin,
                   std::span<float> out);

/// The state of training programs on executors, each element from the first rank that has it: main
/// weights if there are any, otherwise parameters in fp32, and moments of any type. All arguments
/// must outlive it.
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
