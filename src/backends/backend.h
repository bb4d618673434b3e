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

/// A device that a backend found on this machine.
struct DeviceInfo {
  int device = 0;  ///< the backend's number of the device
  std::string name;
  int64_t memory_bytes = 0;
};

struct FoundDevices {
  std::vector<DeviceInfo> usable;
  std::string why_none;  ///< "this build has no CUDA"; empty if there are devices
  /// With several devices: why the ranks of one run cannot communicate ("this build has no NCCL",
  /// or the loader's message); empty if they can.
  std::string why_alone = {};
};

/// For callers that do not know how many streams programs will have.
inline constexpr size_t kAnyNumberOfStreams = SIZE_MAX / 2;

/// Memory that a rank takes on a device in addition to the arenas of its memory plan.
struct DeviceNeed {
  std::string what;  ///< for people: "scratch of kernels", "NCCL"
  int64_t bytes = 0;
};

/// DeviceNeed::what of the scratch memory of kernels.
inline constexpr std::string_view kKernelScratch = "scratch of kernels";

/// What the memory of a communicator depends on.
struct CommunicatorShape {
  int64_t num_ranks = 0;
  bool is_for_messages = false;  ///< from one rank to another
  bool has_all_to_all = false;
};

struct DeviceNeedsOptions {
  bool repeatable = true;     ///< like runtime.repeatable
  bool with_context = false;  ///< also count what an idle process takes
  int num_workers = 1;        ///< like RankOptions::num_workers
};

/// Options for the executor of a rank. A backend ignores options that do not apply to it.
struct RankOptions {
  int device = 0;                    ///< DeviceInfo::device
  Transport* transport = nullptr;    ///< on the host: this rank's end; must outlive the executor;
                                     ///< may be null if no task communicates
  Rendezvous* rendezvous = nullptr;  ///< on devices: connects the ranks; must outlive the executor;
                                     ///< may be null if no task communicates
  int num_workers = 1;               ///< on the host: threads of each compute stream
  std::string cache_folder = {};     ///< for measured algorithm choices; empty: choices are kept
                                     ///< only for the executor's lifetime
  bool poison_step_arena = false;  ///< fill step buffers with NaN (0xFF) before each step, so that
                                   ///< reads of undefined memory show
  bool eager = false;              ///< on devices: task by task instead of one graph
  bool sync_each_task = false;     ///< on devices: wait for each task before the next
  bool repeatable = true;      ///< false: the backward of attention may add in any order, which is
                               ///< faster
  bool nccl_windows = false;   ///< like runtime.nccl_windows
  bool shares_device = false;  ///< with other ranks of this run
  int64_t timeout_ns = 0;      ///< on devices: time that a rank waits for others
  int64_t stuck_timeout_ns = 2'000'000'000;  ///< on the host: additional wait for running tasks
                                             ///< after that
  /// The other ranks do not exist: communication takes these durations. Then there is no transport
  /// and no rendezvous.
  std::optional<EmulatedPeers> emulated_peers = std::nullopt;
};

/// How `braid calibrate` measures a device.
struct CalibrationTraits {
  double longest_task_ns = 0;  ///< limit of timed tasks, by the analytic model
  int64_t warm_up_ns = 0;      ///< duration of launches before the first measured one
  int64_t sample_ns = 0;       ///< duration of launches that are timed together
};

/// The interface of a backend. All but the last three functions work without a device, so plans,
/// estimates and checks are the same on every machine.
struct Backend {
  std::string_view name;  ///< in runtime.device and in timelines: "cuda"
  /// Ranks are threads of the host, in its memory, and communicate over a Transport. Otherwise
  /// ranks have devices with their own memory, and communicate by themselves after they have
  /// connected through a Rendezvous.
  bool is_host = false;
  std::span<const DType> dtypes;  ///< of activations and weights, the default first
  CalibrationTraits calibration;

  /// The memory that a rank takes in addition to its arenas, for the programs of one rank after all
  /// passes. Values that are not known exactly are upper bounds. Entries of 0 bytes may be missing.
  std::vector<DeviceNeed> (*needs)(std::span<const Program> programs,
                                   const DeviceNeedsOptions& options) = nullptr;
  /// The part of one communicator, which has at least two ranks.
  int64_t (*communicator_bytes)(const CommunicatorShape& shape) = nullptr;
  /// The part for communication, by communicator, as text that ends with a newline; empty if there
  /// is none.
  std::string (*describe_communication_needs)(std::span<const Program> programs) = nullptr;
  /// Libraries and drivers that affect measured times: "driver 580.159.04, CUDA 13.0, ...". Empty
  /// if this build lacks the backend.
  std::string (*software)() = nullptr;
  /// Variables and values of the environment with which a new process would be faster, where a
  /// library chose badly while it was loaded; null or empty: none.
  std::vector<std::pair<std::string, std::string>> (*better_environment)() = nullptr;
  /// Lines of `braid doctor`: item and value. Throws nothing.
  std::vector<std::pair<std::string, std::string>> (*diagnose)() = nullptr;
  /// The devices that this build has kernels for; none on the host. Throws nothing. The first call
  /// in a process prepares the driver for programs of that many streams.
  FoundDevices (*find_devices)(size_t num_streams) = nullptr;
  /// Free memory of a device, after subtracting what this process takes in any case. Null on the
  /// host. Throws DeviceError.
  int64_t (*free_bytes)(int device) = nullptr;
  /// Throws ConfigError if this build lacks the backend or the backend does not support the
  /// options, DeviceError, and InternalError if programs and plan do not fit together.
  std::unique_ptr<Executor> (*make_executor)(std::vector<Program> programs, MemoryPlan plan,
                                             const RankOptions& options) = nullptr;
};

}  // namespace braid
