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
  Device device;              ///< none chosen: the CPU
  int64_t threads = 0;        ///< of a CPU rank; 0: its share of the cores
  int64_t ranks_at_once = 1;  ///< of a CPU: all do what is timed at the same time
  std::vector<RunSpec> runs;  ///< whose programs' specs are measured; all with the same dtype and
                              ///< runtime.repeatable
  std::string stand_in;       ///< kind of known device for what is not measured; empty: by the
                              ///< device's name
  bool quick = false;         ///< fewer shapes and samples
  bool only_runs = false;     ///< of the grid nothing but copies
  bool copy_engines = false;  ///< of several GPUs: also communication by copy engines
  std::string cache_folder;
  std::function<void(const CalibrationProgress&)> on_progress;
};

/// Communication between ranks too: on a CPU over no link (comm_timer.h); on several GPUs
/// (Device::gpus) as the library does it, alone and beside compute (device_comm_timer.h).
/// Measures the device: products, attention and memory-bound ops at the shapes of a grid that
/// covers the model presets (on a CPU: of small models), and at those of `runs`; copies to and
/// from the host; overheads. Takes a minute or two, and what the device needs to choose kernels for
/// shapes that it sees first; "quick" some seconds. Every spec is timed
/// through the executor of the device, so by the kernels of a training step. Throws ConfigError for
/// a device without a stand-in, and whatever planning `runs` or running its kernels throws.
Profile calibrate(const CalibrateOptions& options);

/// File that a calibration writes unless told otherwise: "profiles/h200.json", of several GPUs
/// "profiles/h200x8.json".
std::string default_profile_path(const Profile& profile);

/// What was measured, in a few lines: device, points by op, spread, overheads.
std::string describe_profile(const Profile& profile);

}  // namespace braid
