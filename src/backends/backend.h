#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/executor.h"
#include "base/dtype.h"
#include "comm/emulated_call.h"
#include "ir/program.h"
#include "memory/memory_plan.h"

namespace braid {

class Rendezvous;
class Transport;

/// A device that a backend has found on this machine.
struct DeviceInfo {
  int device = 0;  ///< number by which its backend knows it
  std::string name;
  int64_t memory_bytes = 0;
};

struct FoundDevices {
  std::vector<DeviceInfo> usable;
  std::string why_none;  ///< "this build has no CUDA"; empty if there are some
  /// Of several: why those of one run cannot communicate ("this build has no NCCL", or what the
  /// loader says); empty if they can.
  std::string why_alone = {};
};

/// Where it is not known how many streams programs will have.
inline constexpr size_t kAnyNumberOfStreams = SIZE_MAX / 2;

/// What a rank takes of a device beside the arenas of its memory plan.
struct DeviceNeed {
  std::string what;  ///< for people: "scratch of kernels", "NCCL"
  int64_t bytes = 0;
};

/// DeviceNeed::what of the memory that kernels work in.
inline constexpr std::string_view kKernelScratch = "scratch of kernels";

struct DeviceNeedsOptions {
  bool repeatable = true;     ///< as runtime.repeatable
  bool with_context = false;  ///< also what a process takes that has done nothing yet
  int num_workers = 1;        ///< as RankOptions::num_workers
};

/// How an executor is made for a rank. A backend ignores what it has no use for.
struct RankOptions {
  int device = 0;                    ///< DeviceInfo::device
  Transport* transport = nullptr;    ///< on the host: this rank's end; must outlive the executor;
                                     ///< may be null if no task communicates
  Rendezvous* rendezvous = nullptr;  ///< on devices: where ranks meet; as transport
  int num_workers = 1;               ///< on the host: threads of each compute stream
  std::string cache_folder = {};     ///< of measured algorithm choices; empty: choices last as long
                                     ///< as the executor
  bool poison_step_arena = false;  ///< fill step buffers with NaN (0xFF) before each step, so that
                                   ///< reads of undefined memory show
  bool eager = false;              ///< on devices: task by task instead of one graph
  bool sync_each_task = false;     ///< on devices: wait for each task before the next
  bool repeatable = true;      ///< false: the backward of attention may add in any order, which is
                               ///< faster
  bool nccl_windows = false;   ///< as runtime.nccl_windows
  bool shares_device = false;  ///< with other ranks of this run
  int64_t timeout_ns = 0;      ///< on devices: how long a rank waits for others
  int64_t stuck_timeout_ns = 2'000'000'000;  ///< on the host: and then for tasks that run
  /// The other ranks are not there: communication takes as long as this says. No transport and no
  /// rendezvous then.
  std::optional<EmulatedPeers> emulated_peers = std::nullopt;
};

/// How `braid calibrate` measures a device.
struct CalibrationTraits {
  double longest_task_ns = 0;  ///< no longer one is timed, by the analytic model
  int64_t warm_up_ns = 0;      ///< of launches before the first that counts
  int64_t sample_ns = 0;       ///< of launches that are timed together
};

/// What everybody else knows of a backend. All but the last three functions need no device, so
/// that plans, estimates and checks are the same on any machine.
struct Backend {
  std::string_view name;  ///< in runtime.device and in timelines: "cuda"
  /// Ranks are threads of the host, in its memory, and communicate over a Transport. Others have
  /// devices with memory of their own, and communicate by themselves, once they have met at a
  /// Rendezvous.
  bool is_host = false;
  std::span<const DType> dtypes;  ///< of activations and weights, the usual one first
  CalibrationTraits calibration;

  /// What a rank takes beside its arenas, of the programs of one rank after all passes. What is not
  /// known exactly is a bound. 0 bytes may be left out.
  std::vector<DeviceNeed> (*needs)(std::span<const Program> programs,
                                   const DeviceNeedsOptions& options) = nullptr;
  /// What of that is for communication, by communicator, and the end of the line; empty if there is
  /// none.
  std::string (*describe_communication_needs)(std::span<const Program> programs) = nullptr;
  /// Libraries and drivers that measured times depend on: "driver 580.159.04, CUDA 13.0, ...".
  /// Empty if this build lacks the backend.
  std::string (*software)() = nullptr;
  /// Lines of `braid doctor`: what, and what there is of it. Throws nothing.
  std::vector<std::pair<std::string, std::string>> (*diagnose)() = nullptr;
  /// The devices that this build has kernels for; none on the host. Throws nothing. The first call
  /// in a process prepares the driver for programs of so many streams.
  FoundDevices (*find_devices)(size_t num_streams) = nullptr;
  /// Free memory of a device, with what this process takes of it in any case already taken off.
  /// Null on the host. Throws DeviceError.
  int64_t (*free_bytes)(int device) = nullptr;
  /// Throws ConfigError if this build lacks the backend or it cannot run a rank so, DeviceError,
  /// and InternalError if programs and plan do not fit together.
  std::unique_ptr<Executor> (*make_executor)(std::vector<Program> programs, MemoryPlan plan,
                                             const RankOptions& options) = nullptr;
};

}  // namespace braid
