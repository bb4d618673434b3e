#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "backends/cuda/cuda_error.h"

namespace braid {

/// Owns one native handle of the CUDA runtime; move-only (after MLX's CudaHandle). Destruction
/// reports nothing: the next checked call returns an error that matters.
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
  /// `priority` as in Stream: higher runs first, and 0 is the device's lowest. Values above the
  /// device's highest are clamped to it.
  explicit CudaStream(int priority);
};

enum class EventTiming { kNone, kTimed };

class CudaEvent : public CudaHandle<cudaEvent_t, cudaEventDestroy> {
 public:
  CudaEvent() = default;
  explicit CudaEvent(EventTiming timing);
};

/// Work as a graph: the work of streams, with its order.
class CudaGraph : public CudaHandle<cudaGraph_t, cudaGraphDestroy> {
 public:
  CudaGraph() = default;
  explicit CudaGraph(cudaGraph_t graph) : CudaHandle(graph) {}  ///< takes ownership
};

/// An executable graph, which can be launched any number of times. Its nodes keep the priorities of
/// the streams on which they were captured.
class CudaGraphExec : public CudaHandle<cudaGraphExec_t, cudaGraphExecDestroy> {
 public:
  CudaGraphExec() = default;
  /// When it returns, the graph has all of its resources on the device. `stream` is used for the
  /// upload.
  CudaGraphExec(const CudaGraph& graph, cudaStream_t stream);
};

/// Captures the work enqueued on `origin`, and on streams that wait for it, until `end`. Destroying
/// it without `end` (after an error) discards the capture.
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
