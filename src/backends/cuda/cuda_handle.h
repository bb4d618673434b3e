#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "backends/cuda/cuda_error.h"

namespace braid {

/// Owns one native handle of the CUDA runtime; move-only (after MLX's CudaHandle). Destruction
/// reports nothing: an error that matters meets the next checked call.
template <class Handle, cudaError_t (*destroy)(Handle)>
class CudaHandle {
 public:
  CudaHandle() = default;
  ~CudaHandle() { reset(); }
  CudaHandle(CudaHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  CudaHandle& operator=(CudaHandle&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  CudaHandle(const CudaHandle&) = delete;
  CudaHandle& operator=(const CudaHandle&) = delete;

  Handle get() const { return handle_; }
  operator Handle() const { return handle_; }

 protected:
  explicit CudaHandle(Handle handle) : handle_(handle) {}

 private:
  void reset() noexcept {
    if (handle_ != nullptr) {
      ignore_error(destroy(handle_));
    }
  }

  Handle handle_ = nullptr;
};

/// A stream of the current device that never waits for the default stream.
class CudaStream : public CudaHandle<cudaStream_t, cudaStreamDestroy> {
 public:
  CudaStream() = default;
  /// `priority` as in Stream: higher runs first, 0 is the device's lowest; beyond the device's
  /// highest it counts as that.
  explicit CudaStream(int priority);
};

enum class EventTiming { kNone, kTimed };

class CudaEvent : public CudaHandle<cudaEvent_t, cudaEventDestroy> {
 public:
  CudaEvent() = default;
  explicit CudaEvent(EventTiming timing);
};

/// Work as a graph: what streams would run, with its order.
class CudaGraph : public CudaHandle<cudaGraph_t, cudaGraphDestroy> {
 public:
  CudaGraph() = default;
  explicit CudaGraph(cudaGraph_t graph) : CudaHandle(graph) {}  ///< takes ownership
};

/// A graph on the device, ready to be launched any number of times. Its nodes keep the priorities
/// of the streams that they were captured on.
class CudaGraphExec : public CudaHandle<cudaGraphExec_t, cudaGraphExecDestroy> {
 public:
  CudaGraphExec() = default;
  /// All that it needs on the device is there when this returns. `stream` is used for the upload.
  CudaGraphExec(const CudaGraph& graph, cudaStream_t stream);
};

/// Captures what is enqueued on `origin`, and on streams that wait for it, until `end`.
/// Destroying it without `end` (an error on the way) drops what was captured.
class CudaCapture {
 public:
  explicit CudaCapture(cudaStream_t origin);
  ~CudaCapture();
  CudaCapture(const CudaCapture&) = delete;
  CudaCapture& operator=(const CudaCapture&) = delete;

  CudaGraph end();

 private:
  cudaStream_t origin_ = nullptr;
  bool active_ = false;
};

}  // namespace braid
