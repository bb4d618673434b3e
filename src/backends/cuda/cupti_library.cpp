#include "backends/cuda/cupti_library.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <array>
#include <string_view>
#include <variant>

#include "backends/cuda/cupti_session.h"
#include "backends/cuda/loaded_library.h"
#include "base/errors.h"

namespace braid {
namespace {

LoadedLibrary open_library() {
  constexpr std::array<std::string_view, 3> kBesideCublas = {"", "../extras/CUPTI/lib64/",
                                                             "../../cuda_cupti/lib/"};
  return {fmt::format("libcupti.so.{}", CUDART_VERSION / 1000), kBesideCublas};
}

std::string version_text(uint32_t version) {
  return version >= 100000  // older versions count releases, such as 26
             ? fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
             : fmt::format("API {}", version);
}

CuptiLibrary load() {
  CuptiLibrary cupti;
  const LoadedLibrary library = open_library();
  library.find("cuptiGetVersion", cupti.get_version);
  library.find("cuptiGetResultString", cupti.get_result_string);
  library.find("cuptiSubscribe", cupti.subscribe);
  library.find("cuptiUnsubscribe", cupti.unsubscribe);
  library.find("cuptiEnableCallback", cupti.enable_callback);
  library.find("cuptiActivityRegisterCallbacks", cupti.register_callbacks);
  library.find("cuptiActivityEnable", cupti.enable);
  library.find("cuptiActivityDisable", cupti.disable);
  library.find("cuptiActivityFlushAll", cupti.flush_all);
  library.find("cuptiActivityGetNextRecord", cupti.get_next_record);
  library.find("cuptiActivityGetNumDroppedRecords", cupti.get_num_dropped_records);
  library.find("cuptiActivityPushExternalCorrelationId", cupti.push_external_id);
  library.find("cuptiActivityPopExternalCorrelationId", cupti.pop_external_id);
  library.find("cuptiGetGraphNodeId", cupti.get_graph_node_id);
  library.find("cuptiFinalize", cupti.finalize);
  cupti.path = library.path();
  uint32_t version = 0;
  cupti.check(cupti.get_version(&version), "cuptiGetVersion");
  cupti.version = version_text(version);
  return cupti;
}

}  // namespace

const CuptiLibrary& CuptiLibrary::get() {
  // The result of the first attempt is final, so that no step waits for the loader again.
  static const std::variant<CuptiLibrary, CuptiError> loaded =
      []() -> std::variant<CuptiLibrary, CuptiError> {
    try {
      return load();
    } catch (const CuptiError& error) {
      return error;
    } catch (const DeviceError& error) {
      return CuptiError(error.what());
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
