#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "backends/cuda/communicators.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/nccl_calls.h"
#include "backends/cuda/nccl_library.h"
#include "base/errors.h"
#include "comm/transport.h"

/// Checks a call of the library `nccl`.
#define BRAID_NCCL_CHECK(call) nccl.check((call), #call)

namespace braid {
namespace {

/// This rank's place among the members.
int place_of(const CommunicatorKey& key, int rank) {
  const auto found = std::ranges::find(key.ranks, rank);
  check(found != key.ranks.end(), "rank {} is no member of {}", rank, describe_key(key));
  return static_cast<int>(found - key.ranks.begin());
}

/// The first member makes the id, the others wait for it.
ncclUniqueId exchange_id(const NcclLibrary& nccl, const CommunicatorKey& key, int place,
                         Rendezvous& rendezvous) {
  const std::string name = "the id of communicator " + describe_key(key);
  ncclUniqueId id{};
  if (place == 0) {
    BRAID_NCCL_CHECK(nccl.get_unique_id(&id));
    rendezvous.put(name, std::string(id.internal, sizeof id.internal));
    return id;
  }
  const std::string bytes = rendezvous.get(name);
  check(bytes.size() == sizeof id.internal, "{} has {} bytes", name, bytes.size());
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

ncclComm_t make_communicator(const NcclLibrary& nccl, const CommunicatorKey& key, int place,
                             Rendezvous& rendezvous) {
  const ncclUniqueId id = exchange_id(nccl, key, place, rendezvous);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.commName = key.name.c_str();
  ncclComm_t made = nullptr;
  BRAID_NCCL_CHECK(nccl.comm_init(&made, static_cast<int>(key.ranks.size()), id, place, &config));
  return made;
}

CommCall call_of(const Program& program, const Task& task) {
  const OpSpec& spec = program.spec(task);
  const Group& group = program.groups[group_of(program, spec)->index()];
  const std::vector<std::byte*> no_addresses(spec.operands.size(), nullptr);
  return make_comm_call(spec, group, no_addresses, spec.op);
}

/// What NCCL chooses an algorithm by, equal on all members. Messages have one for all sizes.
using CallKind = std::tuple<CommOp, int64_t, DType, int64_t, int64_t>;

CallKind kind_of(const CommCall& call) {
  return call.is_message() ? CallKind{}
                           : CallKind{call.op, call.num_elems(), call.dtype, call.root, call.shift};
}

using TaskOfProgram = std::pair<const Program*, const Task*>;

/// The first task of each kind of call on each communicator: in one order on all its members.
std::map<CommunicatorKey, std::vector<TaskOfProgram>> first_calls(
    std::span<const Program> programs) {
  std::map<CommunicatorKey, std::vector<TaskOfProgram>> calls;
  std::set<std::pair<CommunicatorKey, CallKind>> seen;
  for (const Program& program : programs) {
    std::set<uint32_t> seen_specs;  // few, and perhaps a million tasks
    for (const Task& task : program.tasks) {
      const std::optional<CommunicatorKey> key = seen_specs.insert(task.spec.value).second
                                                     ? communicator_key(program, task)
                                                     : std::nullopt;
      if (key && seen.emplace(*key, kind_of(call_of(program, task))).second) {
        calls[*key].emplace_back(&program, &task);
      }
    }
  }
  return calls;
}

/// Bytes of the largest operand.
int64_t largest_operand(const std::map<CommunicatorKey, std::vector<TaskOfProgram>>& calls) {
  int64_t bytes = 0;
  for (const auto& [key, tasks] : calls) {
    for (const auto& [program, task] : tasks) {
      bytes = std::max(bytes, call_of(*program, *task).num_bytes());
    }
  }
  return bytes;
}

}  // namespace

struct Communicators::State {
  const NcclLibrary& nccl = NcclLibrary::get();
  Rendezvous& rendezvous;
  std::map<CommunicatorKey, ncclComm_t> made;
  bool is_aborted = false;

  explicit State(Rendezvous& given) : rendezvous(given) {}

  ~State() { end(); }

  /// Communicators of a run that failed are aborted, since the others may never end their part.
  void end() {
    const bool failed = is_aborted || rendezvous.aborted().has_value();
    for (const auto& [key, communicator] : made) {
      (void)(failed ? nccl.comm_abort(communicator) : nccl.comm_destroy(communicator));
    }
    made.clear();
  }
};

Communicators::Communicators(std::span<const Program> programs, Rendezvous& rendezvous)
    : state_(std::make_unique<State>(rendezvous)) {
  for (const CommunicatorKey& key : communicator_keys(programs)) {
    const int place = place_of(key, programs.front().rank);
    state_->made.emplace(key, make_communicator(state_->nccl, key, place, rendezvous));
  }
  connect(programs);
}

/// NCCL connects the members of a communicator at the first call of each kind, on the host, which
/// the capture of a graph does not allow. Every rank takes its communicators in the one order, so
/// that no call waits for a member that waits for another one.
void Communicators::connect(std::span<const Program> programs) {
  const auto calls = first_calls(programs);
  const int64_t bytes = largest_operand(calls);
  const DeviceArena x(bytes, "first calls of communicators");
  const DeviceArena y(bytes, "first calls of communicators");
  const std::array operands{x.data(), y.data()};
  const CudaStream stream(0);
  for (const auto& [key, tasks] : calls) {
    for (const auto& [program, task] : tasks) {
      make_kernel(*program, *task)
          .launch({.operands = std::span(operands).first(program->spec(*task).operands.size()),
                   .scratch = nullptr,
                   .stream = stream});
    }
  }
  wait(stream);
}

Communicators::~Communicators() = default;

CudaKernel Communicators::make_kernel(const Program& program, const Task& task) const {
  const std::optional<CommunicatorKey> key = communicator_key(program, task);
  check(key.has_value(), "a task without communicator");
  const auto found = state_->made.find(*key);
  check(found != state_->made.end(), "there is no communicator {}", describe_key(*key));
  return make_nccl_kernel(program.spec(task), call_of(program, task), found->second,
                          place_of(*key, program.rank));
}

bool Communicators::wait(cudaStream_t stream, std::optional<std::chrono::nanoseconds> limit) const {
  constexpr int kQueriesPerLook = 256;  // for faults: it takes a lock per communicator
  const auto begin = std::chrono::steady_clock::now();
  for (int queries = 1;; ++queries) {
    const cudaError_t status = cudaStreamQuery(stream);
    if (status != cudaErrorNotReady) {
      cuda_check(status, "cudaStreamQuery");
      return true;
    }
    if (queries % kQueriesPerLook == 0) {
      if (const std::optional<std::string> reason = fault()) {
        throw AbortedError(*reason);
      }
      if (limit && std::chrono::steady_clock::now() - begin > *limit) {
        return false;
      }
    }
    std::this_thread::yield();
  }
}

std::optional<std::string> Communicators::fault() const {
  if (auto reason = state_->rendezvous.aborted()) {
    return reason;
  }
  for (const auto& [key, communicator] : state_->made) {
    ncclResult_t status = ncclSuccess;
    const ncclResult_t asked = state_->nccl.comm_get_async_error(communicator, &status);
    if (asked != ncclSuccess || (status != ncclSuccess && status != ncclInProgress)) {
      return fmt::format("NCCL, {}: {}", describe_key(key),
                         state_->nccl.get_error_string(asked != ncclSuccess ? asked : status));
    }
  }
  return std::nullopt;
}

void Communicators::abort(const std::string& reason) noexcept {
  state_->rendezvous.abort(reason);
  state_->is_aborted = true;
  state_->end();
}

}  // namespace braid
