#include "backends/cuda/comm/nccl_library.h"

#include <array>
#include <string_view>

#include "backends/cuda/comm/communicators.h"
#include "backends/cuda/loaded_library.h"
#include "base/errors.h"

namespace braid {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

NcclLibrary load() {
  constexpr std::array<std::string_view, 2> kBesideCublas = {"", "../../nccl/lib/"};
  const LoadedLibrary library("libnccl.so.2", kBesideCublas);
  NcclLibrary nccl;
  library.find("ncclGetVersion", nccl.get_version);
  library.find("ncclGetErrorString", nccl.get_error_string);
  library.find("ncclGetLastError", nccl.get_last_error);
  library.find("ncclGetUniqueId", nccl.get_unique_id);
  library.find("ncclCommInitRankConfig", nccl.comm_init);
  library.find("ncclCommGetAsyncError", nccl.comm_get_async_error);
  library.find("ncclCommDestroy", nccl.comm_destroy);
  library.find("ncclCommAbort", nccl.comm_abort);
  library.find("ncclAllReduce", nccl.all_reduce);
  library.find("ncclAllGather", nccl.all_gather);
  library.find("ncclReduceScatter", nccl.reduce_scatter);
  library.find("ncclBroadcast", nccl.broadcast);
  library.find("ncclReduce", nccl.reduce);
  library.find("ncclSend", nccl.send);
  library.find("ncclRecv", nccl.recv);
  library.find("ncclGroupStart", nccl.group_start);
  library.find("ncclGroupEnd", nccl.group_end);
#if BRAID_HAS_NCCL_WINDOWS
  library.find("ncclMemAlloc", nccl.mem_alloc);
  library.find("ncclMemFree", nccl.mem_free);
  library.find("ncclCommWindowRegister", nccl.window_register);
  library.find("ncclAlltoAll", nccl.all_to_all);
#endif
  nccl.path = library.path();
  int version = 0;
  nccl.check(nccl.get_version(&version), "ncclGetVersion");
  nccl.version = version_text(version);
  // A newer library accepts the configuration of an older header, but not vice versa.
  if (version < NCCL_VERSION_CODE) {
    throw_device_error("{} is NCCL {}, and this build needs {} or newer", nccl.path, nccl.version,
                       version_text(NCCL_VERSION_CODE));
  }
  return nccl;
}

}  // namespace

const NcclLibrary& NcclLibrary::get() {
  static const NcclLibrary loaded = load();
  return loaded;
}

void NcclLibrary::check(ncclResult_t status, const char* call) const {
  if (status == ncclSuccess) {
    return;
  }
  const char* const detail = get_last_error(nullptr);
  const bool has_detail = detail != nullptr && *detail != '\0';
  throw_device_error("{}: {}{}{}", call, get_error_string(status), has_detail ? ": " : "",
                     has_detail ? detail : "");
}

std::string describe_nccl() {
  try {
    const NcclLibrary& nccl = NcclLibrary::get();
    const std::string windows = why_no_nccl_windows();
    return fmt::format("NCCL {} ({}), {}", nccl.version, nccl.path,
                       windows.empty() ? "with symmetric windows" : windows);
  } catch (const DeviceError& error) {
    return error.what();
  }
}

std::string why_no_nccl() {
  try {
    NcclLibrary::get();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

}  // namespace braid
