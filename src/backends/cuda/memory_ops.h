#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

namespace braid {

/// Words of memory that a stream sets or waits for, without a kernel or an SM. The operations can
/// be captured into a graph. Addresses may be in other devices' memory, and must be multiples of 4.
class MemoryOps {
 public:
  /// Sets a word after all earlier work of the stream is visible to every device.
  void set(std::byte* word, uint32_t value);
  /// Waits until a word, as a signed number, is at least `value`.
  void await(std::byte* word, uint32_t value);
  /// Waits until a word is `value`.
  void await_equal(std::byte* word, uint32_t value);

  bool empty() const { return ops_.empty(); }

  /// Enqueues the operations in order as one batch. Throws DeviceError, also if the driver does not
  /// support them.
  void enqueue(cudaStream_t stream) const;

 private:
  void add_wait(std::byte* word, uint32_t value, unsigned flags);

  std::vector<CUstreamBatchMemOpParams> ops_;
};

}  // namespace braid
