#include "backends/cuda/memory_ops.h"

#include <cudaTypedefs.h>

#include <algorithm>
#include <string>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/driver_function.h"
#include "base/errors.h"

namespace braid {
namespace {

PFN_cuStreamBatchMemOp_v11070 batch_function() {
  static const auto kFunction =
      driver_function<PFN_cuStreamBatchMemOp_v11070>("cuStreamBatchMemOp", 11070);
  return kFunction;
}

std::string reason_of(CUresult status) {
  static const auto kFunction =
      driver_function<PFN_cuGetErrorString_v6000>("cuGetErrorString", 6000);
  const char* text = nullptr;
  return kFunction(status, &text) == CUDA_SUCCESS && text != nullptr ? text : "unknown error";
}

CUdeviceptr address_of(std::byte* word) {
  return reinterpret_cast<CUdeviceptr>(word);
}

}  // namespace

void MemoryOps::set(std::byte* word, uint32_t value) {
  CUstreamBatchMemOpParams op{};
  op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  op.writeValue.address = address_of(word);
  op.writeValue.value = value;
  op.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // with a memory barrier
  ops_.push_back(op);
}

void MemoryOps::await(std::byte* word, uint32_t value) {
  add_wait(word, value, CU_STREAM_WAIT_VALUE_GEQ);
}

void MemoryOps::await_equal(std::byte* word, uint32_t value) {
  add_wait(word, value, CU_STREAM_WAIT_VALUE_EQ);
}

void MemoryOps::add_wait(std::byte* word, uint32_t value, unsigned flags) {
  CUstreamBatchMemOpParams op{};
  op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  op.waitValue.address = address_of(word);
  op.waitValue.value = value;
  op.waitValue.flags = flags;
  ops_.push_back(op);
}

void MemoryOps::enqueue(cudaStream_t stream) const {
  constexpr size_t kMost = 255;                      // limit per call
  std::vector<CUstreamBatchMemOpParams> ops = ops_;  // the driver takes a non-const pointer
  for (size_t begin = 0; begin < ops.size(); begin += kMost) {
    const size_t count = std::min(kMost, ops.size() - begin);
    const CUresult status =
        batch_function()(stream, static_cast<unsigned>(count), ops.data() + begin, 0);
    if (status != CUDA_SUCCESS) {
      throw_device_error("cuStreamBatchMemOp of {} words: {}", count, reason_of(status));
    }
  }
}

}  // namespace braid
