// Replaces cupti_session.cpp if the toolkit has no CUPTI headers.
#include "backends/cuda/cupti_session.h"

namespace braid {

struct CuptiSession::State {};

CuptiSession::CuptiSession(std::unique_ptr<State> state) : state_(std::move(state)) {}

CuptiSession::~CuptiSession() = default;

std::shared_ptr<CuptiSession> CuptiSession::open() {
  throw CuptiError("this build has no CUPTI: cupti.h was not found");
}

std::string CuptiSession::description() const {
  return "";
}

void CuptiSession::enter_task(uint32_t) {}

void CuptiSession::leave_task() {}

uint64_t CuptiSession::node_id(cudaGraphNode_t) const {
  return 0;
}

std::vector<NodeClone> CuptiSession::clones_of(const std::function<void()>&) {
  return {};
}

void CuptiSession::start(ActivityRecording&) {}

void CuptiSession::stop(ActivityRecording&) {}

void CuptiSession::forget(ActivityRecording&) noexcept {}

ActivityRecording::ActivityRecording(std::shared_ptr<CuptiSession> session, int device,
                                     RecordedWork work)
    : session_(std::move(session)), device_(device), work_(work) {}

ActivityRecording::~ActivityRecording() = default;

void ActivityRecording::finish() {}

}  // namespace braid
