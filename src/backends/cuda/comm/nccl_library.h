#pragma once

#include <nccl.h>

#include <string>

/// Symmetric windows, and collectives by copy engines over them.
#define BRAID_HAS_NCCL_WINDOWS (NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0))

namespace braid {

/// The functions of libnccl that we use. Throws DeviceError if it cannot be loaded, or is older
/// than the header of this build.
struct NcclLibrary {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclReduce) reduce = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) recv = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
#if BRAID_HAS_NCCL_WINDOWS
  decltype(&::ncclMemAlloc) mem_alloc = nullptr;
  decltype(&::ncclMemFree) mem_free = nullptr;
  decltype(&::ncclCommWindowRegister) window_register = nullptr;
  decltype(&::ncclAlltoAll) all_to_all = nullptr;
#endif
  std::string path;
  std::string version;  ///< "2.28.9"

  /// Searches the loader's path, then beside cuBLAS, where toolkits and Python wheels install it.
  /// Loaded once, and never unloaded.
  static const NcclLibrary& get();

  /// Throws DeviceError "CALL: reason" unless the call succeeded.
  void check(ncclResult_t status, const char* call) const;
};

}  // namespace braid
