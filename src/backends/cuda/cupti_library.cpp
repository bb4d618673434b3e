#include "backends/cuda/cupti_library.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include <variant>
#include <vector>

#include "backends/cuda/cupti_session.h"

namespace braid {
namespace {

/// The folder of the library that has this symbol; empty if none is loaded.
std::string folder_of_symbol(const char* symbol) {
  Dl_info info{};
  void* const address = dlsym(RTLD_DEFAULT, symbol);
  if (address == nullptr || dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    return "";
  }
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::vector<std::string> candidates() {
  const std::string name = fmt::format("libcupti.so.{}", CUDART_VERSION / 1000);
  std::vector<std::string> paths{name};
  const std::string folder = folder_of_symbol("cublasLtCreate");
  if (!folder.empty()) {
    for (const char* beside : {"/", "/../extras/CUPTI/lib64/", "/../../cuda_cupti/lib/"}) {
      paths.push_back(folder + beside + name);
    }
  }
  return paths;
}

/// The library and its path. Throws CuptiError with the loader's words about the first candidate.
std::pair<void*, std::string> open_library() {
  std::string reason;
  for (const std::string& path : candidates()) {
    if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return {library, path};
    }
    if (reason.empty()) {
      reason = dlerror();
    }
  }
  throw CuptiError(reason);
}

template <class Function>
void find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw CuptiError(fmt::format("libcupti has no function {}", name));
  }
}

std::string version_text(uint32_t version) {
  return version >= 100000  // older ones count their releases: 26
             ? fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
             : fmt::format("API {}", version);
}

CuptiLibrary load() {
  CuptiLibrary cupti;
  const auto [library, path] = open_library();
  find_function(library, "cuptiGetVersion", cupti.get_version);
  find_function(library, "cuptiGetResultString", cupti.get_result_string);
  find_function(library, "cuptiSubscribe", cupti.subscribe);
  find_function(library, "cuptiUnsubscribe", cupti.unsubscribe);
  find_function(library, "cuptiEnableCallback", cupti.enable_callback);
  find_function(library, "cuptiActivityRegisterCallbacks", cupti.register_callbacks);
  find_function(library, "cuptiActivityEnable", cupti.enable);
  find_function(library, "cuptiActivityDisable", cupti.disable);
  find_function(library, "cuptiActivityFlushAll", cupti.flush_all);
  find_function(library, "cuptiActivityGetNextRecord", cupti.get_next_record);
  find_function(library, "cuptiActivityGetNumDroppedRecords", cupti.get_num_dropped_records);
  find_function(library, "cuptiActivityPushExternalCorrelationId", cupti.push_external_id);
  find_function(library, "cuptiActivityPopExternalCorrelationId", cupti.pop_external_id);
  find_function(library, "cuptiGetGraphNodeId", cupti.get_graph_node_id);
  find_function(library, "cuptiFinalize", cupti.finalize);
  cupti.path = path;
  uint32_t version = 0;
  cupti.check(cupti.get_version(&version), "cuptiGetVersion");
  cupti.version = version_text(version);
  return cupti;
}

}  // namespace

const CuptiLibrary& CuptiLibrary::get() {
  // What the first look finds is final, so that no step waits for the loader again.
  static const std::variant<CuptiLibrary, CuptiError> loaded =
      []() -> std::variant<CuptiLibrary, CuptiError> {
    try {
      return load();
    } catch (const CuptiError& error) {
      return error;
    }
  }();
  if (const auto* error = std::get_if<CuptiError>(&loaded)) {
    throw CuptiError(*error);
  }
  return std::get<CuptiLibrary>(loaded);
}

void CuptiLibrary::check(CUptiResult status, const char* call) const {
  if (status == CUPTI_SUCCESS) {
    return;
  }
  if (status == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    throw CuptiError("another profiler is attached to this process (CUPTI serves one)");
  }
  const char* reason = nullptr;
  get_result_string(status, &reason);
  throw CuptiError(fmt::format("{}: {}", call, reason == nullptr ? "unknown error" : reason));
}

}  // namespace braid
