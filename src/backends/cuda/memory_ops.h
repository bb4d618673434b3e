#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

/// Words of memory that a stream sets, or waits for: no kernel, and no SM. They can be captured
/// into a graph. Addresses may be those of other devices' memory, and must be multiples of 4.
class MemoryOps {
 public:
  /// Sets a word, when all that the stream did before can be seen by every device.
  void set(std::byte* word, uint32_t value);
  /// Waits until a word, as a signed number, is `value` or more.
  void await(std::byte* word, uint32_t value);
  /// Waits until a word is `value`.
  void await_equal(std::byte* word, uint32_t value);

  bool empty() const { return ops_.empty(); }

  /// In this order, as one batch. Throws DeviceError, also where the driver does not have them.
  void enqueue(cudaStream_t stream) const;

 private:
  void add_wait(std::byte* word, uint32_t value, unsigned flags);

  std::vector<CUstreamBatchMemOpParams> ops_;
};

}  // namespace braid
