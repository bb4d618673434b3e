#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/run_spec.h"
#include "runtime/device.h"
#include "sim/profile.h"

namespace braid {

struct CalibrationProgress {
  int64_t done = 0;
  int64_t total = 0;
};

struct CalibrateOptions {
  Device device;              ///< default: the CPU
  int64_t threads = 0;        ///< of a CPU rank; 0: its share of the cores
  int64_t ranks_at_once = 1;  ///< on a CPU: ranks that run each timed task at the same time
  std::vector<RunSpec> runs;  ///< the specs of their programs are measured; all with the same dtype
                              ///< and runtime.repeatable
  std::string stand_in;       ///< kind of known device for everything that is not measured; empty:
                              ///< chosen by the device's name
  bool quick = false;         ///< fewer shapes and samples
  bool only_runs = false;     ///< of the grid, only copies
  bool copy_engines = false;  ///< on several GPUs: also communication by copy engines
  std::string cache_folder;
  std::function<void(const CalibrationProgress&)> on_progress;
};

/// Measures the device: products, attention and memory-bound ops at the shapes of a grid that
/// covers the model presets (on a CPU: of small models), and at those of `runs`; copies to and from
/// the host; overheads. Also measures communication between ranks: on a CPU without links
/// (comm_timer.h); on several GPUs (Device::gpus) by the library, alone and together with compute
/// (device_comm_timer.h). Takes a minute or two, plus the time in which the device chooses kernels
/// for new shapes; "quick" takes some seconds. The device's executor runs every spec, so it is
/// timed with the kernels of a training step. Throws ConfigError for a device without a stand-in,
/// and whatever planning `runs` or running its kernels throws.
Profile calibrate(const CalibrateOptions& options);

/// The default file of a calibration: "profiles/h200.json", for several GPUs
/// "profiles/h200x8.json".
std::string default_profile_path(const Profile& profile);

/// A summary of the measurements in a few lines: device, points by op, spread, overheads.
std::string describe_profile(const Profile& profile);

}  // namespace braid
