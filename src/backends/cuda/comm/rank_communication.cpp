#include "backends/cuda/comm/rank_communication.h"

#include <algorithm>
#include <utility>

#include "backends/cuda/comm/wait_for_event.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/hardware_queues.h"
#include "base/env.h"
#include "base/errors.h"
#include "ops/collectives.h"

namespace braid {

RankCommunication::RankCommunication(std::span<const Program> programs, Rendezvous* rendezvous,
                                     CommunicatorOptions options)
    : programs_(programs) {
  if (rendezvous != nullptr) {
    meeting_ = open_place(*rendezvous);  // also if this rank has nothing to exchange
  }
  if (communicator_keys(programs).empty()) {
    return;
  }
  const int rank = programs.front().rank;
  check(meeting_ != nullptr, "rank {} communicates, and has no rendezvous", rank);
  copies_ = std::make_unique<PeerCalls>(rank, programs);
  if (!copies_->empty()) {
    const bool may_have_windows =
        options.windows || std::ranges::any_of(programs, [](const Program& program) {
          return std::ranges::any_of(program.specs.all(), is_by_nccl_copies);
        });
    copies_->find_peers({.shares_operands = !may_have_windows,
                         .fault = why_queues_are_shared(
                             programs, process_environment()("CUDA_DEVICE_MAX_CONNECTIONS"))},
                        *meeting_);
  }
  options.keys = communicator_keys(programs, [this](size_t program, TaskId task) {
    return copies_->kernel(program, task) == nullptr || copies_->may_be_apart(program, task);
  });
  if (!options.keys->empty()) {
    communicators_ = std::make_unique<Communicators>(programs, *meeting_, std::move(options));
  }
}

RankCommunication::RankCommunication(std::span<const Program> programs, const EmulatedPeers& peers)
    : programs_(programs), emulated_(std::make_unique<EmulatedCalls>(programs, peers)) {}

RankCommunication::~RankCommunication() = default;

bool RankCommunication::has_windows() const {
  return communicators_ != nullptr && communicators_->wants_windows();
}

const Allocator& RankCommunication::allocator() const {
  return has_windows()                             ? nccl_window_allocator()
         : copies_ != nullptr && !copies_->empty() ? peer_memory_allocator()
                                                   : cuda_allocator();
}

const CudaKernel* RankCommunication::copy_kernel(size_t program, TaskId task) const {
  if (emulated_ != nullptr) {
    return emulated_->kernel(program, task);
  }
  return copies_ != nullptr ? copies_->kernel(program, task) : nullptr;
}

CudaKernel RankCommunication::make_nccl_kernel(const Program& program, const Task& task) const {
  check(communicators_ != nullptr, "a task of NCCL, and there are no communicators");
  return communicators_->make_kernel(program, task);
}

std::vector<HostTimedTask> RankCommunication::played(size_t program) const {
  return emulated_ != nullptr ? emulated_->played(program) : std::vector<HostTimedTask>{};
}

void RankCommunication::connect(const OperandMemory& operands) {
  if (has_windows()) {
    communicators_->register_windows(programs_, operands);
  }
  if (copies_ != nullptr && !copies_->empty()) {
    const auto by_nccl = [this](size_t program, TaskId task) {  // tasks whose ranks may be unable
                                                                // to access each other's memory
      return make_nccl_kernel(programs_[program], programs_[program].tasks[task.index()]);
    };
    copies_->connect({.memory = operands.memory, .address = operands.address, .otherwise = by_nccl},
                     *meeting_);
  }
}

void RankCommunication::await_others() {
  if (meeting_ != nullptr && !programs_.empty()) {
    const Program& any = programs_.front();
    barrier(*meeting_, "its first step", any.rank, any.num_ranks);
  }
}

bool RankCommunication::wait(cudaEvent_t event,
                             std::optional<std::chrono::nanoseconds> limit) const {
  if (empty()) {
    BRAID_CUDA_CHECK(cudaEventSynchronize(event));
    return true;
  }
  return wait_for_event(
      event, [this] { return fault(); }, limit);
}

std::optional<std::string> RankCommunication::fault() const {
  if (empty()) {
    return std::nullopt;
  }
  return communicators_ != nullptr ? communicators_->fault() : meeting_->aborted();
}

void RankCommunication::release_waits() const noexcept {
  if (copies_ != nullptr) {
    copies_->release();
  }
}

void RankCommunication::fail(const std::string& reason) noexcept {
  if (empty()) {
    return;
  }
  release_waits();  // first: calls that the abort ends may wait behind these
  if (communicators_ != nullptr) {
    communicators_->abort(reason);
  } else {
    meeting_->abort(reason);
  }
}

std::vector<std::string> RankCommunication::notes() const {
  std::vector<std::string> notes;
  if (copies_ != nullptr) {
    for (const std::string& why : copies_->apart()) {
      notes.push_back("SMs do the communication of copy engines: " + why);
    }
  }
  if (communicators_ != nullptr) {
    for (const std::string& why : communicators_->without_windows()) {
      notes.push_back("no NCCL windows, " + why);
    }
  }
  return notes;
}

int64_t RankCommunication::workspace_bytes() const {
  if (emulated_ != nullptr) {
    return emulated_->device_bytes();
  }
  return copies_ != nullptr ? copies_->flag_bytes() : 0;
}

}  // namespace braid
