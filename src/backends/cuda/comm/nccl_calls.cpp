#include "backends/cuda/comm/nccl_calls.h"

#include <cstdint>

#include "backends/cuda/comm/nccl_library.h"
#include "backends/cuda/cuda_error.h"
#include "base/errors.h"
#include "ops/collectives.h"

/// Checks a call of the library `nccl`.
#define BRAID_NCCL_CHECK(call) nccl.check((call), #call)

namespace braid {
namespace {

ncclDataType_t summed_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return ncclFloat64;
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI32:
      return ncclInt32;
    default:
      throw_internal_error("NCCL has no sums of dtype {}", dtype_name(dtype));
  }
}

/// A call that only moves elements depends on their size alone.
ncclDataType_t moved_dtype(DType dtype) {
  switch (dtype_bytes(dtype)) {
    case 1:
      return ncclUint8;
    case 2:
      return ncclFloat16;
    case 4:
      return ncclInt32;
    default:
      return ncclInt64;
  }
}

/// A call with everything that does not change from step to step.
struct NcclCall {
  CommCall call;
  ncclComm_t communicator = nullptr;
  int place = 0;
  int size = 1;
  ncclDataType_t dtype = ncclFloat32;
  size_t send_operand = 0;
  size_t recv_operand = 0;
  bool by_copies = false;

  size_t send_elems() const { return static_cast<size_t>(call.send_elems); }
  size_t recv_elems() const { return static_cast<size_t>(call.recv_elems); }
  size_t bytes(size_t elems) const { return elems * dtype_bytes(call.dtype); }
};

/// Uses messages, except for copies by copy engines, which NCCL supports only in its own
/// all-to-all.
void exchange_blocks(const NcclLibrary& nccl, const NcclCall& c, const std::byte* x, std::byte* y,
                     cudaStream_t stream) {
  const size_t block = c.send_elems() / static_cast<size_t>(c.size);
#if BRAID_HAS_NCCL_WINDOWS
  if (c.by_copies) {
    BRAID_NCCL_CHECK(nccl.all_to_all(x, y, block, c.dtype, c.communicator, stream));
    return;
  }
#endif
  BRAID_NCCL_CHECK(nccl.group_start());
  for (int peer = 0; peer < c.size; ++peer) {
    const size_t offset = static_cast<size_t>(peer) * c.bytes(block);
    BRAID_NCCL_CHECK(nccl.send(x + offset, block, c.dtype, peer, c.communicator, stream));
    BRAID_NCCL_CHECK(nccl.recv(y + offset, block, c.dtype, peer, c.communicator, stream));
  }
  BRAID_NCCL_CHECK(nccl.group_end());
}

void shift_round(const NcclLibrary& nccl, const NcclCall& c, const std::byte* x, std::byte* y,
                 cudaStream_t stream) {
  const auto shift = static_cast<int>((c.call.shift % c.size + c.size) % c.size);
  if (shift == 0) {
    BRAID_CUDA_CHECK(
        cudaMemcpyAsync(y, x, c.bytes(c.send_elems()), cudaMemcpyDeviceToDevice, stream));
    return;
  }
  const int to = (c.place + shift) % c.size;
  const int from = (c.place + c.size - shift) % c.size;
  BRAID_NCCL_CHECK(nccl.group_start());
  BRAID_NCCL_CHECK(nccl.send(x, c.send_elems(), c.dtype, to, c.communicator, stream));
  BRAID_NCCL_CHECK(nccl.recv(y, c.recv_elems(), c.dtype, from, c.communicator, stream));
  BRAID_NCCL_CHECK(nccl.group_end());
}

/// The sum on the root, zeros elsewhere.
void reduce_to_root(const NcclLibrary& nccl, const NcclCall& c, const std::byte* x, std::byte* y,
                    cudaStream_t stream) {
  const auto root = static_cast<int>(c.call.root);
  BRAID_NCCL_CHECK(
      nccl.reduce(x, y, c.send_elems(), c.dtype, ncclSum, root, c.communicator, stream));
  if (c.place != root) {
    BRAID_CUDA_CHECK(cudaMemsetAsync(y, 0, c.bytes(c.recv_elems()), stream));
  }
}

void enqueue(const NcclCall& c, const CudaKernelArgs& args) {
  const NcclLibrary& nccl = NcclLibrary::get();
  const std::byte* const x = args.operands[c.send_operand];
  std::byte* const y = args.operands[c.recv_operand];
  switch (c.call.op) {
    case CommOp::kAllReduce:
    case CommOp::kAllReduceMax:
      BRAID_NCCL_CHECK(nccl.all_reduce(x, y, c.send_elems(), c.dtype,
                                       c.call.op == CommOp::kAllReduce ? ncclSum : ncclMax,
                                       c.communicator, args.stream));
      break;
    case CommOp::kAllGather:
      BRAID_NCCL_CHECK(nccl.all_gather(x, y, c.send_elems(), c.dtype, c.communicator, args.stream));
      break;
    case CommOp::kReduceScatter:
      BRAID_NCCL_CHECK(
          nccl.reduce_scatter(x, y, c.recv_elems(), c.dtype, ncclSum, c.communicator, args.stream));
      break;
    case CommOp::kAllToAll:
      exchange_blocks(nccl, c, x, y, args.stream);
      break;
    case CommOp::kBroadcast:
      BRAID_NCCL_CHECK(nccl.broadcast(x, y, c.send_elems(), c.dtype, static_cast<int>(c.call.root),
                                      c.communicator, args.stream));
      break;
    case CommOp::kReduce:
      reduce_to_root(nccl, c, x, y, args.stream);
      break;
    case CommOp::kRingShift:
      shift_round(nccl, c, x, y, args.stream);
      break;
    case CommOp::kDispatchRows:
    case CommOp::kCombineRows:
      throw_internal_error("{}: NCCL does not know how many rows there are",
                           comm_op_name(c.call.op));
    case CommOp::kSend:  // the communicator is {sender, receiver}
      BRAID_NCCL_CHECK(nccl.send(x, c.send_elems(), c.dtype, 1, c.communicator, args.stream));
      break;
    case CommOp::kRecv:
      BRAID_NCCL_CHECK(nccl.recv(y, c.recv_elems(), c.dtype, 0, c.communicator, args.stream));
      break;
  }
}

}  // namespace

CudaKernel make_nccl_kernel(const OpSpec& spec, const CommCall& call, ncclComm_t communicator,
                            int place) {
  NcclCall c{.call = call,
             .communicator = communicator,
             .place = place,
             .size = static_cast<int>(call.group->ranks.size()),
             .dtype = call.sums() ? summed_dtype(call.dtype) : moved_dtype(call.dtype),
             .by_copies = is_by_nccl_copies(spec)};
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    c.send_operand = reads(spec.operands[i].access) ? i : c.send_operand;
    c.recv_operand = writes(spec.operands[i].access) ? i : c.recv_operand;
  }
  return {.launch = [c](const CudaKernelArgs& args) { enqueue(c, args); }, .scratch_bytes = 0};
}

}  // namespace braid
