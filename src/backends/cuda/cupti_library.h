#pragma once

#include <cupti.h>

#include <string>

namespace braid {

/// The functions of libcupti that we use. Throws CuptiError if it cannot be loaded.
struct CuptiLibrary {
  decltype(&::cuptiGetVersion) get_version = nullptr;
  decltype(&::cuptiGetResultString) get_result_string = nullptr;
  decltype(&::cuptiSubscribe) subscribe = nullptr;
  decltype(&::cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&::cuptiEnableCallback) enable_callback = nullptr;
  decltype(&::cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&::cuptiActivityEnable) enable = nullptr;
  decltype(&::cuptiActivityDisable) disable = nullptr;
  decltype(&::cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&::cuptiActivityGetNextRecord) get_next_record = nullptr;
  decltype(&::cuptiActivityGetNumDroppedRecords) get_num_dropped_records = nullptr;
  decltype(&::cuptiActivityPushExternalCorrelationId) push_external_id = nullptr;
  decltype(&::cuptiActivityPopExternalCorrelationId) pop_external_id = nullptr;
  decltype(&::cuptiGetGraphNodeId) get_graph_node_id = nullptr;
  decltype(&::cuptiFinalize) finalize = nullptr;
  std::string path;
  std::string version;  ///< "13.0.1"

  /// Searches the loader's path, then beside cuBLAS, where toolkits and Python wheels install it.
  /// Loaded once, and never unloaded.
  static const CuptiLibrary& get();

  /// Throws CuptiError "CALL: reason" unless the call succeeded.
  void check(CUptiResult status, const char* call) const;
};

}  // namespace braid
