#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/stream_scratch.h"
#include "ir/program.h"

namespace braid {

/// A stream of the programs on the device.
struct DeviceStream {
  Stream stream;
  CudaStream handle;
  CudaEvent joined;
  DeviceArena scratch;
};

/// The streams and events of all programs of one rank, on the device that is current. Programs
/// share streams of equal name and kind, and events by number: they take turns. All that a rank
/// does on its device is in the order of one more stream, the launch stream: a step forks from it
/// and joins it.
class DeviceStreams {
 public:
  DeviceStreams();

  /// Adds what a program has. Number here of each of its streams. Throws InternalError if two of
  /// them are one, or a task names a stream that the program does not have.
  std::vector<size_t> add(const Program& program);

  /// A kernel on that stream needs so much scratch.
  void need_scratch(size_t stream, size_t size_bytes) { scratch_.need(stream, size_bytes); }
  /// What kernels need, once all are known; `rank` is for errors. Throws DeviceError.
  void allocate_scratch(int rank);
  int64_t scratch_bytes() const;

  size_t size() const { return streams_.size(); }
  const DeviceStream& operator[](size_t stream) const { return streams_[stream]; }
  cudaStream_t launch_stream() const { return launch_stream_; }
  cudaEvent_t event(EventId event) const { return events_[event.index()]; }

  /// These streams start after what the launch stream did before.
  void fork(std::span<const size_t> streams);
  /// The launch stream goes on after all that these streams did.
  void join(std::span<const size_t> streams);

  /// Whether something runs or waits on any of them.
  bool are_busy() const;
  /// Waits for all of them; errors are no news.
  void synchronize() const noexcept;

 private:
  size_t add_stream(const Stream& stream);

  CudaStream launch_stream_;
  CudaEvent forked_;
  std::vector<CudaEvent> events_;
  StreamScratch scratch_;  // by stream
  std::vector<DeviceStream> streams_;
};

}  // namespace braid
