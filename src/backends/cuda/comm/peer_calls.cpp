#include "backends/cuda/comm/peer_calls.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "backends/cuda/comm/row_exchange.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/memory_ops.h"
#include "backends/cuda/pinned_arena.h"
#include "base/errors.h"

namespace braid {
namespace {

constexpr int64_t kWordBytes = 4;
/// The note of a rank whose operands cannot be mapped.
constexpr const char* kPrivateOperands = "private operands";
/// All bytes of the flags of a failed run: as a number, larger than any value that a wait expects.
constexpr int kReleasedByte = 1;

/// An address in the memory of a rank.
struct Place {
  size_t part = 0;  // of PeerMemory
  int64_t offset = 0;
};

/// The places of what others access, and of the flags, of a call on a rank.
struct CallPlace {
  std::vector<Place> operands;  // CopyCall::reached_operands
  int64_t first_flag = 0;
  int64_t block_bytes = 0;
};

using CallPlaces = std::map<std::string, CallPlace>;

std::string to_text(const CallPlaces& places) {
  std::string text;
  for (const auto& [name, place] : places) {
    text += fmt::format("{} {} {}", place.first_flag, place.block_bytes, place.operands.size());
    for (const Place& operand : place.operands) {
      text += fmt::format(" {} {}", operand.part, operand.offset);
    }
    text += fmt::format(" {}\n", name);
  }
  return text;
}

CallPlaces from_text(const std::string& text) {
  CallPlaces places;
  std::istringstream lines(text);
  CallPlace place;
  size_t num_operands = 0;
  while (lines >> place.first_flag >> place.block_bytes >> num_operands) {
    place.operands.clear();
    for (size_t i = 0; i < num_operands && lines; ++i) {
      Place& operand = place.operands.emplace_back();
      lines >> operand.part >> operand.offset;
    }
    std::string name;
    check(static_cast<bool>(std::getline(lines >> std::ws, name)), "a call without a name");
    places.emplace(std::move(name), place);
  }
  return places;
}

/// What a call enqueues: memory operations, then a copy or a kernel.
struct Stage {
  MemoryOps words;
  std::function<void(cudaStream_t)> move;  // empty: nothing
};

CudaKernel kernel_of(std::vector<Stage> stages) {
  return {.launch =
              [stages = std::move(stages)](const CudaKernelArgs& args) {
                for (const Stage& stage : stages) {
                  if (!stage.words.empty()) {
                    stage.words.enqueue(args.stream);
                  }
                  if (stage.move != nullptr) {
                    stage.move(args.stream);
                  }
                }
              },
          .scratch_bytes = 0};
}

std::string why_apart_in(const PeerMemory& memory, const std::vector<int>& ranks) {
  for (const int from : ranks) {
    for (const int to : ranks) {
      if (std::string why = from < to ? memory.why_apart(from, to) : ""; !why.empty()) {
        return why;
      }
    }
  }
  return "";
}

}  // namespace

struct PeerCalls::State {
  int rank;
  std::span<const Program> programs;
  std::vector<CopyCall> calls;
  std::map<std::pair<size_t, TaskId>, CudaKernel> kernels;
  DeviceArena flags;
  PinnedArena released;  // `release` copies it over the flags
  CudaStream release_stream;
  std::string fault;  // Reach::fault
  std::optional<PeerMemory> flag_memory;
  std::optional<PeerMemory> memory;  // with the operands
  std::map<int, CallPlaces> places;  // by rank
  std::vector<std::string> apart;

  State(int own_rank, std::span<const Program> own_programs)
      : rank(own_rank), programs(own_programs), calls(find_copy_calls(own_programs)) {
    for (const CopyCall& call : calls) {
      kernels.try_emplace({call.program, call.task});
    }
  }

  std::vector<int> peers() const {
    std::set<int> found;
    for (const CopyCall& call : calls) {
      found.insert(call.ranks.begin(), call.ranks.end());
    }
    found.erase(rank);
    return {found.begin(), found.end()};
  }

  int64_t num_flags() const {
    int64_t count = 0;
    for (const CopyCall& call : calls) {
      count += num_copy_flags(call.shape.size);
    }
    return count;
  }

  void allocate_flags() {
    const int64_t bytes = calls.empty() ? 0 : (num_flags() + 1) * kWordBytes;
    flags = DeviceArena(bytes, fmt::format("flags of copies of rank {}", rank),
                        peer_memory_allocator());
    released = PinnedArena(bytes, fmt::format("flags of copies of rank {}, on the host", rank));
    std::memset(released.data(), kReleasedByte, static_cast<size_t>(bytes));
    constexpr int kHighest = 5;
    release_stream = CudaStream(kHighest);
  }

  CallPlaces own_places(const Connection& connection) const;
  std::string why_apart(const CopyCall& call) const;
  bool may_be_apart(const CopyCall& call) const;
  const CallPlace& place_at(const CopyCall& call, int member) const;
  std::byte* flag_at(const CopyCall& call, int member, int64_t flag) const;
  std::byte* reached(const CopyCall& call, int member, size_t index) const;
  /// A word behind the flags, which is 0 until `release`.
  std::byte* failed_word() const { return flags.data() + num_flags() * kWordBytes; }
  std::function<void(cudaStream_t)> copy_of(const CopyCall& call, const CopyStep& step,
                                            const Connection& connection) const;
  std::function<void(cudaStream_t)> fetch_rows_of(const CopyCall& call,
                                                  const Connection& connection) const;
  std::vector<Stage> stages_of(const CopyCall& call, const Connection& connection) const;
};

/// Finds the operands in the memory that others can access.
CallPlaces PeerCalls::State::own_places(const Connection& connection) const {
  CallPlaces own;
  for (const CopyCall& call : calls) {
    CallPlace place{.first_flag = call.first_flag, .block_bytes = call.shape.block_bytes};
    for (const size_t operand : call.reached_operands) {
      std::byte* const data = connection.address(call.program, call.task, operand);
      const auto found = std::ranges::find_if(connection.memory, [&](const SharedMemory& it) {
        return it.data <= data && data < it.data + it.size_bytes;
      });
      check(found != connection.memory.end(), "{}: operand {} is in memory that peers do not see",
            call.name, operand);
      place.operands.push_back(
          {static_cast<size_t>(found - connection.memory.begin()), data - found->data});
    }
    const bool is_new = own.emplace(call.name, place).second;
    check(is_new, "rank {} has two calls {}", rank, call.name);
  }
  return own;
}

/// All members get the same answer.
std::string PeerCalls::State::why_apart(const CopyCall& call) const {
  std::string why = why_apart_in(*flag_memory, call.ranks);
  return why.empty() ? why_apart_in(*memory, call.ranks) : why;
}

/// All members get the same answer.
bool PeerCalls::State::may_be_apart(const CopyCall& call) const {
  return !why_apart_in(*flag_memory, call.ranks).empty() ||
         std::ranges::any_of(
             call.ranks, [&](int member) { return flag_memory->note(member) == kPrivateOperands; });
}

const CallPlace& PeerCalls::State::place_at(const CopyCall& call, int member) const {
  const int at = call.ranks[static_cast<size_t>(member)];
  const CallPlaces& known = places.at(at);
  const auto found = known.find(call.name);
  check(found != known.end(), "rank {} has {}, and rank {} does not", rank, call.name, at);
  check(found->second.block_bytes == call.shape.block_bytes,
        "{}: blocks of {} bytes on rank {}, of {} on rank {}", call.name, call.shape.block_bytes,
        rank, found->second.block_bytes, at);
  return found->second;
}

std::byte* PeerCalls::State::flag_at(const CopyCall& call, int member, int64_t flag) const {
  const int at = call.ranks[static_cast<size_t>(member)];
  return flag_memory->data(at, 0) + (place_at(call, member).first_flag + flag) * kWordBytes;
}

/// The address here of operand number `index` of those that others access.
std::byte* PeerCalls::State::reached(const CopyCall& call, int member, size_t index) const {
  const Place& place = place_at(call, member).operands.at(index);
  return memory->data(call.ranks[static_cast<size_t>(member)], place.part) + place.offset;
}

/// Empty if the bytes are already there.
std::function<void(cudaStream_t)> PeerCalls::State::copy_of(const CopyCall& call,
                                                            const CopyStep& step,
                                                            const Connection& connection) const {
  std::byte* const to = reached(call, step.peer, 0) + step.to_bytes;
  const std::byte* const from =
      connection.address(call.program, call.task, call.send_operand) + step.from_bytes;
  if (step.action == CopyAction::kKeep && to == from) {
    return {};
  }
  return [to, from, num_bytes = static_cast<size_t>(step.num_bytes)](cudaStream_t stream) {
    BRAID_CUDA_CHECK(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDefault, stream));
  };
}

std::function<void(cudaStream_t)> PeerCalls::State::fetch_rows_of(
    const CopyCall& call, const Connection& connection) const {
  const Program& program = programs[call.program];
  const OpSpec& spec = program.spec(program.tasks[call.task.index()]);
  std::vector<std::byte*> operands;
  for (size_t i = 0; i < spec.operands.size(); ++i) {
    operands.push_back(connection.address(call.program, call.task, i));
  }
  const CommCall rows =
      make_comm_call(spec, program.groups[group_of(program, spec)->index()], operands, call.name);
  RowsOfMembers all;
  all.failed = reinterpret_cast<const uint32_t*>(failed_word());
  for (int member = 0; member < call.shape.size; ++member) {
    all.rows.push_back(reached(call, member, 0));
    size_t next = 1;
    if (rows.rows.has_weights) {
      all.weights.push_back(reached(call, member, next++));
    }
    if (rows.rows.scales_of_row > 0) {
      all.scales.push_back(reached(call, member, next));
    }
  }
  return [rows, all, member = static_cast<size_t>(call.shape.place)](cudaStream_t stream) {
    launch_row_exchange(rows, member, all, stream);
  };
}

std::vector<Stage> PeerCalls::State::stages_of(const CopyCall& call,
                                               const Connection& connection) const {
  std::vector<Stage> stages(1);
  for (const CopyStep& step : copy_steps(call.shape)) {
    Stage& stage = stages.back();
    switch (step.action) {
      case CopyAction::kSignal:
        stage.words.set(flag_at(call, step.peer, step.flag), 1);
        break;
      case CopyAction::kAwait: {
        std::byte* const flag = flag_at(call, call.shape.place, step.flag);
        stage.words.await(flag, 1);
        stage.words.set(flag, 0);
        break;
      }
      case CopyAction::kPush:
      case CopyAction::kKeep:
        stage.move = copy_of(call, step, connection);
        stages.emplace_back();
        break;
      case CopyAction::kFetchRows:
        stage.move = fetch_rows_of(call, connection);
        stages.emplace_back();
        break;
    }
  }
  return stages;
}

PeerCalls::PeerCalls(int rank, std::span<const Program> programs)
    : state_(std::make_unique<State>(rank, programs)) {}

PeerCalls::~PeerCalls() = default;

bool PeerCalls::empty() const {
  return state_->calls.empty();
}

const CudaKernel* PeerCalls::kernel(size_t program, TaskId task) const {
  const auto found = state_->kernels.find({program, task});
  return found == state_->kernels.end() ? nullptr : &found->second;
}

void PeerCalls::find_peers(const Reach& reach, Rendezvous& rendezvous) {
  State& state = *state_;
  state.fault = reach.fault;
  state.allocate_flags();
  state.flag_memory.emplace(
      PeerMemory::Own{.what = "flags",
                      .rank = state.rank,
                      .memory = {{state.flags.data(), state.flags.size_bytes()}},
                      .note = reach.shares_operands ? "" : kPrivateOperands,
                      .fault = state.fault},
      state.peers(), rendezvous);
}

bool PeerCalls::may_be_apart(size_t program, TaskId task) const {
  const auto found = std::ranges::find_if(state_->calls, [&](const CopyCall& call) {
    return call.program == program && call.task == task;
  });
  check(found != state_->calls.end(), "task {} of program {} is no copy", task.value, program);
  return state_->may_be_apart(*found);
}

void PeerCalls::connect(const Connection& connection, Rendezvous& rendezvous) {
  State& state = *state_;
  check(state.flag_memory.has_value(), "rank {} connects before it looks for peers", state.rank);
  const std::vector<int> peers = state.peers();
  state.memory.emplace(PeerMemory::Own{.what = "operands",
                                       .rank = state.rank,
                                       .memory = connection.memory,
                                       .note = to_text(state.own_places(connection)),
                                       .fault = state.fault},
                       peers, rendezvous);
  state.places[state.rank] = from_text(state.memory->note(state.rank));
  for (const int rank : peers) {
    state.places[rank] = from_text(state.memory->note(rank));
  }
  std::set<std::string> apart;
  for (const CopyCall& call : state.calls) {
    CudaKernel& kernel = state.kernels.at({call.program, call.task});
    const std::string why = state.why_apart(call);
    if (!why.empty() && call.fetches_rows()) {
      throw_device_error(
          "{}: {}; ranks that exchange rows of experts directly must reach each other's memory; "
          "set "
          "moe.exchange = \"blocks\", or keep parallel.expert within the GPUs of a host",
          call.name, why);
    }
    if (!why.empty() && !state.may_be_apart(call)) {
      throw_device_error("{}: {}", call.name, why);
    }
    kernel = why.empty() ? kernel_of(state.stages_of(call, connection))
                         : connection.otherwise(call.program, call.task);
    if (!why.empty()) {
      apart.insert(why);
    }
  }
  state.apart.assign(apart.begin(), apart.end());
}

const std::vector<std::string>& PeerCalls::apart() const {
  return state_->apart;
}

int64_t PeerCalls::flag_bytes() const {
  return state_->flags.size_bytes();
}

void PeerCalls::release() noexcept {
  State& state = *state_;
  if (state.flags.size_bytes() == 0) {
    return;
  }
  const auto copy = [&](std::byte* to, int64_t num_bytes) {
    ignore_error(cudaMemcpyAsync(to, state.released.data(), static_cast<size_t>(num_bytes),
                                 cudaMemcpyHostToDevice, state.release_stream));
  };
  copy(state.failed_word(), kWordBytes);  // first: work that waited must see it
  copy(state.flags.data(), state.num_flags() * kWordBytes);
}

}  // namespace braid
