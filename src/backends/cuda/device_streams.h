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

/// The streams and events of all programs of one rank, on the current device. Programs share
/// streams of equal name and kind, and events by number: only one program runs at a time. All work
/// of a rank on its device is ordered by one more stream, the launch stream: a step forks from it
/// and joins it.
class DeviceStreams {
 public:
  DeviceStreams();

  /// Adds the streams and events of a program. Returns the index of each of its streams in this
  /// object. Throws InternalError if two of them are the same, or a task names a stream that the
  /// program lacks.
  std::vector<size_t> add(const Program& program);

  /// Registers the scratch of a kernel on that stream.
  void need_scratch(size_t stream, size_t size_bytes) { scratch_.need(stream, size_bytes); }
  /// Allocates the registered scratch, after all kernels are known; `rank` is for errors. Throws
  /// DeviceError.
  void allocate_scratch(int rank);
  int64_t scratch_bytes() const;

  size_t size() const { return streams_.size(); }
  const DeviceStream& operator[](size_t stream) const { return streams_[stream]; }
  cudaStream_t launch_stream() const { return launch_stream_; }
  cudaEvent_t event(EventId event) const { return events_[event.index()]; }

  /// These streams wait for the launch stream's earlier work.
  void fork(std::span<const size_t> streams);
  /// The launch stream waits for the earlier work of these streams.
  void join(std::span<const size_t> streams);

  /// Whether any of them has unfinished work.
  bool are_busy() const;
  /// Waits for all of them; ignores errors, which have already been reported.
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
