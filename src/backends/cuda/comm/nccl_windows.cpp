#include "backends/cuda/comm/nccl_windows.h"

#include "backends/cuda/comm/nccl_library.h"
#include "base/errors.h"

/// Checks a call of the library `nccl`.
#define BRAID_NCCL_CHECK(call) nccl.check((call), #call)

namespace braid {
#if BRAID_HAS_NCCL_WINDOWS
namespace {

std::byte* allocate(int64_t size_bytes, const std::string& what) {
  const NcclLibrary& nccl = NcclLibrary::get();
  void* data = nullptr;
  const ncclResult_t status = nccl.mem_alloc(&data, static_cast<size_t>(size_bytes));
  if (status != ncclSuccess) {
    throw_device_error("{}: NCCL gives no memory of {} bytes: {}", what, size_bytes,
                       nccl.get_error_string(status));
  }
  return static_cast<std::byte*>(data);
}

void release(std::byte* data, int64_t /*size_bytes*/) {
  (void)NcclLibrary::get().mem_free(data);
}

/// Rounded up to a whole page, which the allocator has allocated: NCCL requires that alignment.
size_t in_pages(int64_t size_bytes) {
  constexpr size_t kPage = NCCL_WIN_REQUIRED_ALIGNMENT;
  return (static_cast<size_t>(size_bytes) + kPage - 1) / kPage * kPage;
}

}  // namespace

std::string make_windows(ncclComm_t communicator, std::span<const size_t> parts,
                         const OperandMemory& operands) {
  const NcclLibrary& nccl = NcclLibrary::get();
  for (const size_t part : parts) {
    const SharedMemory& memory = operands.memory[part];
    ncclWindow_t window = nullptr;
    BRAID_NCCL_CHECK(nccl.window_register(communicator, memory.data, in_pages(memory.size_bytes),
                                          &window, NCCL_WIN_COLL_SYMMETRIC));
    if (window == nullptr) {
      return "NCCL has no symmetric memory between these GPUs";
    }
  }
  return "";
}

std::string why_no_nccl_windows() {
  return "";
}

const Allocator& nccl_window_allocator() {
  static constexpr Allocator kAllocator{.allocate = allocate, .release = release};
  return kAllocator;
}

#else

std::string make_windows(ncclComm_t, std::span<const size_t>, const OperandMemory&) {
  return why_no_nccl_windows();
}

std::string why_no_nccl_windows() {
  return fmt::format("windows need NCCL 2.28, and this build has the header of {}.{}", NCCL_MAJOR,
                     NCCL_MINOR);
}

const Allocator& nccl_window_allocator() {
  return cuda_allocator();
}

#endif

}  // namespace braid
