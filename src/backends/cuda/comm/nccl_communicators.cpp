#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "backends/cuda/comm/communicators.h"
#include "backends/cuda/comm/nccl_calls.h"
#include "backends/cuda/comm/nccl_library.h"
#include "backends/cuda/comm/nccl_windows.h"
#include "backends/cuda/comm/wait_for_event.h"
#include "backends/cuda/comm/window_layout.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "base/errors.h"
#include "comm/transport.h"
#include "ops/expert_exchange.h"

/// Checks a call of the library `nccl`.
#define BRAID_NCCL_CHECK(call) nccl.check((call), #call)

namespace braid {
namespace {

/// This rank's index among the members.
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
  if (key.max_sms > 0) {
    config.minCTAs = 1;
    config.maxCTAs = key.max_sms;
  }
#if BRAID_HAS_NCCL_WINDOWS
  config.CTAPolicy = key.by_copies ? NCCL_CTA_POLICY_ZERO : config.CTAPolicy;
#endif
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

/// The properties by which NCCL chooses an algorithm, equal on all members. Messages of all sizes
/// have one algorithm.
using CallKind = std::tuple<CommOp, int64_t, DType, int64_t, int64_t>;

CallKind kind_of(const CommCall& call) {
  return call.is_message() ? CallKind{}
                           : CallKind{call.op, call.num_elems(), call.dtype, call.root, call.shift};
}

using TaskOfProgram = std::pair<const Program*, const Task*>;

using FirstCalls = std::map<CommunicatorKey, std::vector<TaskOfProgram>>;

/// The first task of each kind of call on each of these communicators, in the order of
/// communicators: the same order on all members. NCCL never does exchanges of rows.
FirstCalls first_calls(std::span<const Program> programs,
                       const std::map<CommunicatorKey, ncclComm_t>& made) {
  FirstCalls calls;
  std::set<std::pair<CommunicatorKey, CallKind>> seen;
  for (const Program& program : programs) {
    std::set<uint32_t> seen_specs;  // few specs, perhaps a million tasks
    for (const Task& task : program.tasks) {
      const bool is_first = seen_specs.insert(task.spec.value).second;
      const std::optional<CommunicatorKey> key = is_first && !exchanges_rows(program.spec(task))
                                                     ? communicator_key(program, task)
                                                     : std::nullopt;
      if (key && made.contains(*key) &&
          seen.emplace(*key, kind_of(call_of(program, task))).second) {
        calls[*key].emplace_back(&program, &task);
      }
    }
  }
  return calls;
}

/// Bytes of the largest operand.
int64_t largest_operand(const FirstCalls& calls) {
  int64_t bytes = 0;
  for (const auto& [key, tasks] : calls) {
    for (const auto& [program, task] : tasks) {
      bytes = std::max(bytes, call_of(*program, *task).num_bytes());
    }
  }
  return bytes;
}

using OperandAddress =
    std::function<std::byte*(const Program& program, const Task& task, size_t operand)>;

/// Runs calls and waits for their end.
void run_calls(const Communicators& communicators, const FirstCalls& calls,
               const OperandAddress& address) {
  const CudaStream stream(0);
  for (const auto& [key, tasks] : calls) {
    for (const auto& [program, task] : tasks) {
      std::vector<std::byte*> operands;
      for (size_t i = 0; i < program->spec(*task).operands.size(); ++i) {
        operands.push_back(address(*program, *task, i));
      }
      communicators.make_kernel(*program, *task)
          .launch({.operands = operands, .scratch = nullptr, .stream = stream});
    }
  }
  const CudaEvent ended(EventTiming::kNone);
  BRAID_CUDA_CHECK(cudaEventRecord(ended, stream));
  wait_for_event(ended, [&] { return communicators.fault(); });
}

}  // namespace

struct Communicators::State {
  const NcclLibrary& nccl = NcclLibrary::get();
  Rendezvous& rendezvous;
  std::map<CommunicatorKey, ncclComm_t> made;
  CommunicatorOptions options;
  std::vector<std::string> without_windows;
  bool is_aborted = false;
  std::vector<std::thread> aborts;

  State(Rendezvous& given, CommunicatorOptions chosen)
      : rendezvous(given), options(std::move(chosen)) {}

  ~State() {
    if (rendezvous.aborted()) {
      abort();
    }
    for (std::thread& each : aborts) {
      each.join();
    }
    for (const auto& [key, communicator] : made) {
      if (!is_aborted) {
        (void)nccl.comm_destroy(communicator);
      }
    }
  }

  /// Communicators of a failed run are aborted, since other ranks may never end their part. But a
  /// kernel that waits on windows does not check for an abort, and the abort might wait for it:
  /// such communicators are leaked. An abort ends the calls at once, but returns only when no graph
  /// contains the communicator any more. A graph may contain several, so each abort has a thread.
  void abort() {
    if (std::exchange(is_aborted, true)) {
      return;
    }
    int device = 0;
    ignore_error(cudaGetDevice(&device));
    for (const auto& [key, communicator] : made) {
      if (!wants_windows(key)) {
        aborts.emplace_back([this, device, aborted = communicator] {
          ignore_error(cudaSetDevice(device));
          (void)nccl.comm_abort(aborted);
        });
      }
    }
  }

  /// False for communicators of messages.
  bool wants_windows(const CommunicatorKey& key) const {
    return key.by_copies || (options.windows && !key.name.ends_with(kMessages));
  }
};

Communicators::Communicators(std::span<const Program> programs, Rendezvous& rendezvous,
                             CommunicatorOptions options)
    : state_(std::make_unique<State>(rendezvous, std::move(options))) {
  for (const CommunicatorKey& key :
       state_->options.keys ? *state_->options.keys : communicator_keys(programs)) {
    const int place = place_of(key, programs.front().rank);
    state_->made.emplace(key, make_communicator(state_->nccl, key, place, rendezvous));
  }
  connect(programs);
}

/// NCCL connects the members of a communicator at the first call of each kind, on the host, which
/// is not possible during the capture of a graph. Every rank visits its communicators in the same
/// global order, so that no call waits for a member that waits for another call.
void Communicators::connect(std::span<const Program> programs) {
  const auto calls = first_calls(programs, state_->made);
  const int64_t bytes = largest_operand(calls);
  const DeviceArena x(bytes, "first calls of communicators");
  const DeviceArena y(bytes, "first calls of communicators");
  const std::array operands{x.data(), y.data()};
  run_calls(*this, calls,
            [&](const Program&, const Task&, size_t operand) { return operands.at(operand); });
}

bool Communicators::wants_windows() const {
  return std::ranges::any_of(state_->made,
                             [&](const auto& entry) { return state_->wants_windows(entry.first); });
}

void Communicators::register_windows(std::span<const Program> programs,
                                     const OperandMemory& operands) {
  FirstCalls calls = first_calls(programs, state_->made);
  for (const auto& [key, communicator] : state_->made) {  // in the same order on all ranks
    if (!state_->wants_windows(key)) {
      calls.erase(key);
      continue;
    }
    const WindowLayout layout =
        agree_on_windows(key, programs, operands, why_no_nccl_windows(), state_->rendezvous);
    const std::string why_not = layout.why_not.empty()
                                    ? make_windows(communicator, layout.memory, operands)
                                    : layout.why_not;
    if (!why_not.empty()) {
      state_->without_windows.push_back(fmt::format("{}: {}", describe_key(key), why_not));
      calls.erase(key);
    }
  }
  run_calls(*this, calls, [&](const Program& program, const Task& task, size_t operand) {
    return operands.address(static_cast<size_t>(&program - programs.data()),
                            TaskId(static_cast<size_t>(&task - program.tasks.data())), operand);
  });
}

const std::vector<std::string>& Communicators::without_windows() const {
  return state_->without_windows;
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

std::optional<std::string> Communicators::fault() const {
  if (auto reason = state_->rendezvous.aborted()) {
    return reason;
  }
  check(!state_->is_aborted, "a fault is looked for after an abort");
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
  state_->abort();
}

}  // namespace braid
