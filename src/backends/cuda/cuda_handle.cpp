#include "backends/cuda/cuda_handle.h"

#include <algorithm>

namespace braid {
namespace {

cudaStream_t make_stream(int priority) {
  int least = 0;
  int greatest = 0;  // a lower number: CUDA counts down
  BRAID_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  BRAID_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                std::clamp(-priority, greatest, least)));
  return stream;
}

cudaEvent_t make_event(EventTiming timing) {
  cudaEvent_t event = nullptr;
  const unsigned flags = timing == EventTiming::kTimed ? cudaEventDefault : cudaEventDisableTiming;
  BRAID_CUDA_CHECK(cudaEventCreateWithFlags(&event, flags));
  return event;
}

cudaGraphExec_t make_graph_exec(cudaGraph_t graph) {
  cudaGraphExec_t exec = nullptr;
  BRAID_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagUseNodePriority));
  return exec;
}

}  // namespace

CudaStream::CudaStream(int priority) : CudaHandle(make_stream(priority)) {}

CudaEvent::CudaEvent(EventTiming timing) : CudaHandle(make_event(timing)) {}

CudaGraphExec::CudaGraphExec(const CudaGraph& graph, cudaStream_t stream)
    : CudaHandle(make_graph_exec(graph)) {
  BRAID_CUDA_CHECK(cudaGraphUpload(get(), stream));
  BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
}

// Thread-local mode: other threads of this process may allocate or synchronize during this capture.
CudaCapture::CudaCapture(cudaStream_t origin) : origin_(origin) {
  BRAID_CUDA_CHECK(cudaStreamBeginCapture(origin_, cudaStreamCaptureModeThreadLocal));
  active_ = true;
}

CudaCapture::~CudaCapture() {
  if (active_) {
    cudaGraph_t graph = nullptr;
    ignore_error(cudaStreamEndCapture(origin_, &graph));
    CudaGraph dropped(graph);
    ignore_error(cudaGetLastError());  // of the broken capture; it does not affect later calls
  }
}

CudaGraph CudaCapture::end() {
  active_ = false;
  cudaGraph_t graph = nullptr;
  BRAID_CUDA_CHECK(cudaStreamEndCapture(origin_, &graph));
  return CudaGraph(graph);
}

}  // namespace braid
