#include "backends/cuda/nvtx_range.h"

#include <nvtx3/nvToolsExt.h>

namespace braid {
namespace {

/// Null if no profiler is attached. A profiler is attached from the start of the process or never,
/// so one check is enough.
nvtxDomainHandle_t domain() {
  static nvtxDomainHandle_t const handle = nvtxDomainCreateA("braid");
  return handle;
}

nvtxEventAttributes_t attributes_of(const std::string& name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name.c_str();
  return attributes;
}

}  // namespace

bool nvtx_is_heard() {
  return domain() != nullptr;
}

void NvtxRange::push(const std::string& name) {
  const nvtxEventAttributes_t attributes = attributes_of(name);
  nvtxDomainRangePushEx(domain(), &attributes);
}

void NvtxRange::pop() {
  nvtxDomainRangePop(domain());
}

uint64_t NvtxSpan::start(const std::string& name) {
  const nvtxEventAttributes_t attributes = attributes_of(name);
  return nvtxDomainRangeStartEx(domain(), &attributes);
}

void NvtxSpan::stop(uint64_t id) {
  nvtxDomainRangeEnd(domain(), id);
}

}  // namespace braid
