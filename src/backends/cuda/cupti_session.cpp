#include "backends/cuda/cupti_session.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "backends/cuda/cupti_library.h"
#include "backends/kernel_name.h"

namespace braid {
namespace {

#if CUPTI_API_VERSION >= 130000
using KernelRecord = CUpti_ActivityKernel10;
using CopyRecord = CUpti_ActivityMemcpy6;
#else
using KernelRecord = CUpti_ActivityKernel9;
using CopyRecord = CUpti_ActivityMemcpy5;
#endif
using PeerCopyRecord = CUpti_ActivityMemcpyPtoP4;
using FillRecord = CUpti_ActivityMemset4;
using ExternalRecord = CUpti_ActivityExternalCorrelation;

constexpr auto kOurNumbers = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

/// Recorded while a session is open.
constexpr std::array kDeviceKinds = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                     CUPTI_ACTIVITY_KIND_MEMCPY,
                                     CUPTI_ACTIVITY_KIND_MEMCPY2,  // between devices
                                     CUPTI_ACTIVITY_KIND_MEMSET};
/// Recorded while work is enqueued task by task; these kinds slow the host.
constexpr std::array kCallKinds = {CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                   CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER};

/// A buffer that CUPTI writes records into: about 20,000 kernels.
struct RecordBuffer {
  static constexpr size_t kBytes = size_t{4} << 20;
  alignas(8) std::array<uint8_t, kBytes> bytes;  // 8: ACTIVITY_RECORD_ALIGNMENT
};

std::string_view copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "copy device to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP:
      return "copy to another device";
    default:
      return "copy";
  }
}

template <class Record>
DeviceActivity activity_of(const Record& record) {
  return {.start_ns = static_cast<int64_t>(record.start),
          .end_ns = static_cast<int64_t>(record.end),
          .graph_node = record.graphNodeId,
          .call = record.correlationId};
}

}  // namespace

/// State that CUPTI's callbacks and the session's callers share.
struct CuptiSession::State {
  explicit State(const CuptiLibrary& library) : cupti(library) {}
  ~State() { detach(); }

  void attach();
  void detach() noexcept;
  template <size_t size>
  void enable(const std::array<CUpti_ActivityKind, size>& kinds) const;
  template <size_t size>
  void disable(const std::array<CUpti_ActivityKind, size>& kinds) const noexcept;
  void flush() const;

  // Called by CUPTI, on any thread; must not throw.
  static void CUPTIAPI lend_buffer(uint8_t** buffer, size_t* size, size_t* max_records) noexcept;
  static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t size,
                                   size_t valid_bytes) noexcept;
  static void CUPTIAPI on_resource(void* state, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                   const void* data) noexcept;

  void read_buffer(uint8_t* buffer, size_t valid_bytes);
  void return_buffer(const uint8_t* buffer);
  void add_record(const CUpti_Activity& record);
  void add_activity(uint32_t device, const DeviceActivity& activity, std::string_view name);
  const std::string& name_of_kernel(const char* symbol);

  /// CUPTI's buffer callbacks have no user data.
  static inline std::atomic<State*> attached{nullptr};

  const CuptiLibrary& cupti;
  CUpti_SubscriberHandle subscriber = nullptr;

  std::mutex control;  // for calls that change what is recorded; callbacks never take it
  int num_running = 0;
  int num_running_calls = 0;

  std::mutex records;  // guards all members below; not held during calls of CUPTI
  std::vector<ActivityRecording*> recordings;
  std::vector<ActivityOwner> owners;                          // of `recordings`
  std::unordered_map<const char*, std::string> kernel_names;  // by symbol, whose strings CUPTI owns
  std::vector<NodeClone> clones;
  std::vector<std::unique_ptr<RecordBuffer>> free_buffers;
  std::vector<std::unique_ptr<RecordBuffer>> lent_buffers;
};

void CuptiSession::State::attach() {
  cupti.check(cupti.subscribe(&subscriber, on_resource, this), "cuptiSubscribe");
  attached = this;
  cupti.check(cupti.register_callbacks(lend_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
  enable(kDeviceKinds);
}

/// After this CUPTI is inactive: without cuptiFinalize, launches would stay slower.
void CuptiSession::State::detach() noexcept {
  if (subscriber == nullptr) {
    return;
  }
  disable(kCallKinds);
  disable(kDeviceKinds);
  cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  cupti.unsubscribe(subscriber);
  cupti.finalize();
  attached = nullptr;
}

template <size_t size>
void CuptiSession::State::enable(const std::array<CUpti_ActivityKind, size>& kinds) const {
  for (const CUpti_ActivityKind kind : kinds) {
    cupti.check(cupti.enable(kind), "cuptiActivityEnable");
  }
}

template <size_t size>
void CuptiSession::State::disable(
    const std::array<CUpti_ActivityKind, size>& kinds) const noexcept {
  for (const CUpti_ActivityKind kind : kinds) {
    cupti.disable(kind);
  }
}

/// Forced: also returns buffers that contain incomplete records of other work.
void CuptiSession::State::flush() const {
  cupti.check(cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
}

void CuptiSession::State::lend_buffer(uint8_t** buffer, size_t* size,
                                      size_t* max_records) noexcept {
  *buffer = nullptr;  // CUPTI counts the records without a buffer as dropped
  *size = 0;
  *max_records = 0;  // as many as fit
  State* const state = attached;
  if (state == nullptr) {
    return;
  }
  try {
    const std::lock_guard lock(state->records);
    if (state->free_buffers.empty()) {
      state->free_buffers.push_back(std::make_unique<RecordBuffer>());
    }
    state->lent_buffers.push_back(std::move(state->free_buffers.back()));
    state->free_buffers.pop_back();
    *buffer = state->lent_buffers.back()->bytes.data();
    *size = RecordBuffer::kBytes;
  } catch (const std::exception&) {
    *buffer = nullptr;
  }
}

void CuptiSession::State::take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t,
                                      size_t valid_bytes) noexcept {
  State* const state = attached;
  if (state == nullptr || buffer == nullptr) {
    return;
  }
  try {
    state->read_buffer(buffer, valid_bytes);
  } catch (const std::exception&) {  // out of memory: the log lacks records, and the timeline says
                                     // so
  }
  state->return_buffer(buffer);
}

void CuptiSession::State::read_buffer(uint8_t* buffer, size_t valid_bytes) {
  size_t num_dropped = 0;
  cupti.get_num_dropped_records(nullptr, 0, &num_dropped);
  CUpti_Activity* record = nullptr;
  while (cupti.get_next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    const std::lock_guard lock(records);
    add_record(*record);
  }
  const std::lock_guard lock(records);
  for (ActivityRecording* recording : recordings) {
    recording->log_.num_lost += static_cast<int64_t>(num_dropped);
  }
}

void CuptiSession::State::return_buffer(const uint8_t* buffer) {
  const std::lock_guard lock(records);
  const auto lent =
      std::find_if(lent_buffers.begin(), lent_buffers.end(),
                   [&](const auto& candidate) { return candidate->bytes.data() == buffer; });
  if (lent != lent_buffers.end()) {
    std::swap(*lent, lent_buffers.back());
    free_buffers.push_back(std::move(lent_buffers.back()));
    lent_buffers.pop_back();
  }
}

void CuptiSession::State::add_record(const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = reinterpret_cast<const KernelRecord&>(record);
      add_activity(kernel.deviceId, activity_of(kernel), name_of_kernel(kernel.name));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = reinterpret_cast<const CopyRecord&>(record);
      add_activity(copy.deviceId, activity_of(copy), copy_name(copy.copyKind));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      // The device of its stream, which may be either end.
      const auto& copy = reinterpret_cast<const PeerCopyRecord&>(record);
      add_activity(copy.deviceId, activity_of(copy),
                   fmt::format("copy from GPU {} to GPU {}", copy.srcDeviceId, copy.dstDeviceId));
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& fill = reinterpret_cast<const FillRecord&>(record);
      add_activity(fill.deviceId, activity_of(fill), "fill");
      break;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto& external = reinterpret_cast<const ExternalRecord&>(record);
      if (external.externalKind == kOurNumbers) {
        for (ActivityRecording* recording : recordings) {
          recording->log_.calls.push_back(
              {external.correlationId, static_cast<uint32_t>(external.externalId)});
        }
      }
      break;
    }
    default:  // the calls themselves, which are recorded only for their numbers
      break;
  }
}

void CuptiSession::State::add_activity(uint32_t device, const DeviceActivity& activity,
                                       std::string_view name) {
  for_each_owner(owners, static_cast<int>(device), activity.graph_node,
                 [&](size_t owner) { recordings[owner]->add(activity, name); });
}

const std::string& CuptiSession::State::name_of_kernel(const char* symbol) {
  const auto [entry, is_new] = kernel_names.try_emplace(symbol);
  if (is_new) {
    entry->second = symbol == nullptr ? "kernel" : kernel_name(symbol);
  }
  return entry->second;
}

void CuptiSession::State::on_resource(void* user_data, CUpti_CallbackDomain domain,
                                      CUpti_CallbackId id, const void* data) noexcept {
  if (domain != CUPTI_CB_DOMAIN_RESOURCE || id != CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) {
    return;
  }
  auto* const state = static_cast<State*>(user_data);
  const auto* resource = static_cast<const CUpti_ResourceData*>(data);
  const auto* graph = static_cast<const CUpti_GraphData*>(resource->resourceDescriptor);
  NodeClone clone;
  if (state->cupti.get_graph_node_id(graph->originalNode, &clone.original) != CUPTI_SUCCESS ||
      state->cupti.get_graph_node_id(graph->node, &clone.node) != CUPTI_SUCCESS) {
    return;  // its records will have no task, and the timeline says so
  }
  try {
    const std::lock_guard lock(state->records);
    state->clones.push_back(clone);
  } catch (const std::exception&) {
    return;
  }
}

CuptiSession::CuptiSession(std::unique_ptr<State> state) : state_(std::move(state)) {}

CuptiSession::~CuptiSession() = default;

std::shared_ptr<CuptiSession> CuptiSession::open() {
  static std::mutex mutex;
  static std::weak_ptr<CuptiSession> opened;
  const std::lock_guard lock(mutex);
  if (std::shared_ptr<CuptiSession> session = opened.lock()) {
    return session;
  }
  auto state = std::make_unique<State>(CuptiLibrary::get());
  state->attach();
  std::shared_ptr<CuptiSession> session(new CuptiSession(std::move(state)));
  opened = session;
  return session;
}

std::string CuptiSession::description() const {
  return fmt::format("CUPTI {} ({})", state_->cupti.version, state_->cupti.path);
}

void CuptiSession::enter_task(uint32_t task) {
  // Without its number the task's work appears as work of no task.
  state_->cupti.push_external_id(kOurNumbers, task);
}

void CuptiSession::leave_task() {
  uint64_t number = 0;
  state_->cupti.pop_external_id(kOurNumbers, &number);
}

uint64_t CuptiSession::node_id(cudaGraphNode_t node) const {
  uint64_t id = 0;
  state_->cupti.check(state_->cupti.get_graph_node_id(node, &id), "cuptiGetGraphNodeId");
  return id;
}

std::vector<NodeClone> CuptiSession::clones_of(const std::function<void()>& instantiate) {
  const std::lock_guard control(state_->control);
  const auto listen = [this](uint32_t enabled) {
    return state_->cupti.enable_callback(enabled, state_->subscriber, CUPTI_CB_DOMAIN_RESOURCE,
                                         CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED);
  };
  state_->cupti.check(listen(1), "cuptiEnableCallback");
  try {
    instantiate();
  } catch (...) {
    listen(0);
    throw;
  }
  listen(0);
  const std::lock_guard records(state_->records);
  return std::exchange(state_->clones, {});
}

void CuptiSession::start(ActivityRecording& recording) {
  const std::lock_guard control(state_->control);
  if (state_->num_running == 0) {
    state_->flush();  // earlier records belong to no recording
  }
  if (recording.work_ == RecordedWork::kCalls && state_->num_running_calls == 0) {
    state_->enable(kCallKinds);
  }
  state_->num_running += 1;
  state_->num_running_calls += recording.work_ == RecordedWork::kCalls ? 1 : 0;
  recording.running_ = true;
  const std::lock_guard records(state_->records);
  state_->recordings.push_back(&recording);
  state_->owners.push_back(recording.owner_);
}

void CuptiSession::stop(ActivityRecording& recording) {
  const std::lock_guard control(state_->control);
  recording.running_ = false;
  state_->num_running -= 1;
  if (recording.work_ == RecordedWork::kCalls && --state_->num_running_calls == 0) {
    state_->disable(kCallKinds);
  }
  if (state_->num_running == 0) {
    state_->flush();
    const std::lock_guard records(state_->records);
    state_->recordings.clear();
    state_->owners.clear();
  }
}

void CuptiSession::forget(ActivityRecording& recording) noexcept {
  if (recording.running_) {
    try {
      stop(recording);
    } catch (const std::exception&) {  // the records are not needed
    }
  }
  const std::lock_guard records(state_->records);
  std::vector<ActivityRecording*>& all = state_->recordings;
  const auto place = std::find(all.begin(), all.end(), &recording);
  if (place != all.end()) {
    state_->owners.erase(state_->owners.begin() + (place - all.begin()));
    all.erase(place);
  }
}

ActivityRecording::ActivityRecording(std::shared_ptr<CuptiSession> session, int device,
                                     RecordedWork work, const TaskOfNode* nodes)
    : session_(std::move(session)), owner_{.device = device, .nodes = nodes}, work_(work) {
  session_->start(*this);
}

ActivityRecording::~ActivityRecording() {
  session_->forget(*this);
}

void ActivityRecording::finish() {
  session_->stop(*this);
}

void ActivityRecording::add(DeviceActivity activity, std::string_view name) {
  const auto found = name_index_.find(name);
  if (found != name_index_.end()) {
    activity.name = found->second;
  } else {
    activity.name = static_cast<uint32_t>(log_.names.size());
    name_index_.emplace(name, activity.name);
    log_.names.emplace_back(name);
  }
  log_.activities.push_back(activity);
}

}  // namespace braid
