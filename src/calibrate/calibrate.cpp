#include "calibrate/calibrate.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <map>
#include <utility>

#include "backends/run_ranks.h"
#include "base/errors.h"
#include "base/text.h"
#include "calibrate/calibration_specs.h"
#include "calibrate/comm_timer.h"
#include "calibrate/device_comm_timer.h"
#include "calibrate/host_cpu.h"
#include "calibrate/ranks_at_once.h"
#include "calibrate/task_timer.h"
#include "ops/elementwise.h"
#include "ops/op.h"
#include "plan/run_spec.h"
#include "runtime/engine.h"
#include "runtime/host_memory.h"
#include "sim/analytic_model.h"
#include "sim/op_family.h"

namespace braid {
namespace {

// For communication between CPU ranks: from sizes that stay in a core's cache to sizes that do not.
constexpr std::array<int64_t, 5> kCommunicationBytes = {4 << 10, 64 << 10, 1 << 20, 8 << 20,
                                                        32 << 20};

// For communication between GPUs: from sizes limited by latency to sizes limited by links.
constexpr std::array<int64_t, 8> kGpuCommunicationBytes = {
    64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 512 << 20};
constexpr std::array<int64_t, 2> kQuickGpuCommunicationBytes = {1 << 20, 64 << 20};
constexpr int64_t kNumContentions = 1;

// Compute together with communication draws another power than either alone, so its samples are
// long.
constexpr int64_t kContentionSampleNs = 20'000'000;
constexpr int64_t kMeetingTimeoutNs = 60'000'000'000;

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  return fmt::format("{:04d}-{:02d}-{:02d}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

const DeviceSpec& stand_in_of(const CalibrateOptions& options) {
  if (!options.stand_in.empty()) {
    if (const DeviceSpec* device = find_device(options.stand_in)) {
      return *device;
    }
    throw_config_error("--like {}: unknown device; one of {}", quote(options.stand_in, 64),
                       known_device_names());
  }
  if (options.device.backend->is_host) {
    return *find_device("cpu");
  }
  if (const DeviceSpec* device = device_by_name(options.device.gpu->name)) {
    return *device;
  }
  throw_config_error(
      "{} is not a known device, and a calibration needs one to price what it does not measure; "
      "name the most similar one with --like: {}",
      options.device.gpu->name, known_device_names());
}

/// Executors on the GPUs of these ranks, made together.
TimedRanks make_gpu_ranks(const CalibrateOptions& options, bool repeatable,
                          std::vector<std::vector<Program>> programs) {
  const size_t num_ranks = programs.size();
  const auto meeting = std::make_shared<std::vector<std::unique_ptr<Rendezvous>>>(
      make_in_process_rendezvous(static_cast<int>(num_ranks), kMeetingTimeoutNs));
  TimedRanks ranks{.meeting = meeting, .executors = {}};
  ranks.executors.resize(num_ranks);
  run_side_by_side(num_ranks, [&](size_t rank) {
    Rendezvous& rendezvous = *meeting->at(rank);
    try {
      std::vector<const Program*> pointers;
      for (const Program& program : programs[rank]) {
        pointers.push_back(&program);
      }
      MemoryPlan plan = plan_memory(pointers);
      ranks.executors[rank] =
          options.device.backend->make_executor(std::move(programs[rank]), std::move(plan),
                                                {.device = options.device.gpu_of(rank).device,
                                                 .rendezvous = &rendezvous,
                                                 .cache_folder = options.cache_folder,
                                                 .repeatable = repeatable});
    } catch (const std::exception& error) {
      rendezvous.abort(error.what());
      throw;
    }
  });
  return ranks;
}

/// The parameters and state of a calibration.
class Calibration {
 public:
  explicit Calibration(const CalibrateOptions& options)
      : options_(options),
        device_(stand_in_of(options)),
        ranks_(options.device.backend->is_host ? static_cast<int>(options.ranks_at_once) : 1),
        threads_(threads_per_rank(options.threads, ranks_)),
        grid_(calibration_grid(grid_size(), dtype())) {
    if (options.only_runs) {
      grid_ = copies_of(std::move(grid_));
    }
  }

  Profile run() {
    TaskTimer timer(timer_options());
    Profile profile{.device_kind = device_.kind, .origin = origin()};
    const std::vector<OpSpec> specs = all_specs();
    num_points_ = static_cast<int64_t>(specs.size()) + 2;
    if (num_gpus() > 1) {
      num_points_ += num_comm_points(device_comm_options()) + kNumContentions;
    }
    report(0);
    const Overheads overheads = timer.measure_overheads(smallest_spec());
    profile.launch_ns = overheads.launch_ns;
    profile.step_overhead_ns = overheads.step_ns;
    report(1);
    add_tasks(profile, specs, timer);
    HostCopyTimings copies =
        time_host_copies(executor_factory(), grid_.host_copy_bytes, num_samples());
    profile.to_device = std::move(copies.to_device);
    profile.to_host = std::move(copies.to_host);
    if (!is_gpu()) {
      add_device_figures(profile);
      profile.communication =
          time_in_process_communication(ranks_, kCommunicationBytes, num_samples());
    } else if (num_gpus() > 1) {
      add_communication(profile, static_cast<int64_t>(specs.size()) + 2);
    }
    report(num_points_);
    return profile;
  }

 private:
  const Backend& backend() const { return *options_.device.backend; }
  bool is_gpu() const { return !backend().is_host; }
  int num_gpus() const { return static_cast<int>(options_.device.gpus.size()); }
  bool is_repeatable() const {
    return options_.runs.empty() || options_.runs.front().config.runtime.repeatable;
  }
  int num_samples() const { return options_.quick ? 3 : 9; }
  DType dtype() const {
    return !options_.runs.empty() ? options_.runs.front().dtype
           : is_gpu()             ? DType::kBF16
                                  : DType::kF32;
  }
  GridSize grid_size() const {
    if (is_gpu()) {
      return options_.quick ? GridSize::kGpuQuick : GridSize::kGpu;
    }
    return options_.quick ? GridSize::kCpuQuick : GridSize::kCpu;
  }

  void report(int64_t done) const {
    if (options_.on_progress) {
      options_.on_progress({.done = done, .total = num_points_});
    }
  }

  ProfileOrigin origin() const {
    if (is_gpu()) {
      return {.device = options_.device.gpu->name,
              .software = backend().software() + (is_repeatable() ? "" : ", not repeatable"),
              .date = today(),
              .threads = 0};
    }
    return {.device = host_cpu_name(),
            .software = backend().software() +
                        (ranks_ > 1 ? fmt::format(", {} ranks at once", ranks_) : ""),
            .date = today(),
            .threads = threads_};
  }

  ExecutorFactory executor_factory() const {
    const RankOptions rank{.device = is_gpu() ? options_.device.gpu->device : 0,
                           .num_workers = threads_,
                           .cache_folder = options_.cache_folder,
                           .repeatable = is_repeatable()};
    const ExecutorFactory factory = [this, rank](std::vector<Program> programs, MemoryPlan plan) {
      return backend().make_executor(std::move(programs), std::move(plan), rank);
    };
    return is_gpu() ? factory : ranks_at_once(factory, ranks_);
  }

  /// Memory of a rank.
  int64_t memory_bytes() const {
    return is_gpu() ? options_.device.gpu->memory_bytes : host_memory_bytes() / ranks_;
  }

  TaskTimerOptions timer_options() const {
    TaskTimerOptions timer{.make_executor = executor_factory(),
                           .rotation_bytes = 3 * cache_bytes(),
                           .max_bytes = memory_bytes() / 4,
                           .num_samples = num_samples()};
    const CalibrationTraits& traits = backend().calibration;
    timer.warm_up_ns = traits.warm_up_ns;
    timer.sample_ns = traits.sample_ns;
    if (options_.quick) {
      timer.rotation_bytes /= 12;
      timer.warm_up_ns = 2'000'000;
      timer.sample_ns = 1'000'000;
      timer.program_ns = 500'000;
    }
    return timer;
  }

  /// On a CPU at most 64 MiB: a larger cache may be shared with other machines.
  int64_t cache_bytes() const {
    return is_gpu() ? device_.cache_bytes
                    : std::min<int64_t>(host_cache_bytes(), int64_t{64} << 20);
  }

  OpSpec smallest_spec() const {
    const OperandSpec operand{.dtype = dtype(), .access = Access::kRead, .shape = {8}};
    OperandSpec result = operand;
    result.access = Access::kWrite;
    return {std::string(kAddOp.name), {}, {operand, operand, result}};
  }

  /// The specs of the runs, then those of the grid that do not take too long.
  std::vector<OpSpec> all_specs() const {
    std::vector<OpSpec> specs;
    for (const RunSpec& run : options_.runs) {
      const auto of_run = program_specs(plan_run(run));
      specs.insert(specs.end(), of_run.begin(), of_run.end());
    }
    for (const OpSpec& spec : grid_specs(grid_, dtype())) {
      if (analytic_task_ns(device_, spec) <= backend().calibration.longest_task_ns &&
          operand_set_bytes(spec) <= memory_bytes() / 4) {
        specs.push_back(spec);
      }
    }
    return distinct_specs(std::move(specs));
  }

  void add_tasks(Profile& profile, std::vector<OpSpec> specs, TaskTimer& timer) const {
    // Products come first, so that the device is as warm as in a step for all later specs.
    std::stable_sort(specs.begin(), specs.end(), [](const OpSpec& a, const OpSpec& b) {
      return std::pair(family_of(a), a.op) < std::pair(family_of(b), b.op);
    });
    std::vector<double> guesses;
    for (const OpSpec& spec : specs) {
      guesses.push_back(analytic_task_ns(device_, spec));
    }
    int64_t done = 1;
    const std::vector<Timing> timings = timer.time(specs, guesses, [&] { report(++done); });
    for (size_t i = 0; i < specs.size(); ++i) {
      profile.tasks.push_back({.spec = specs[i], .timing = timings[i]});
    }
  }

  DeviceCommOptions device_comm_options() const {
    const std::span<const int64_t> sizes =
        options_.quick ? std::span<const int64_t>(kQuickGpuCommunicationBytes)
                       : kGpuCommunicationBytes;
    DeviceCommOptions comm{.make_ranks =
                               [this](std::vector<std::vector<Program>> programs) {
                                 return make_gpu_ranks(options_, is_repeatable(),
                                                       std::move(programs));
                               },
                           .num_ranks = num_gpus(),
                           .sizes_bytes = {sizes.begin(), sizes.end()},
                           .dtype = DType::kBF16,
                           .cluster = make_cluster(device_, num_gpus()),
                           .copy_engines = options_.copy_engines};
    comm.timer.num_samples = num_samples();
    return comm;
  }

  /// Measures communication of several GPUs, and its effect on compute.
  void add_communication(Profile& profile, int64_t done) const {
    DeviceCommOptions comm = device_comm_options();
    comm.on_point = [&] { report(++done); };
    profile.communication = time_device_communication(comm);
    if (!options_.quick) {
      comm.timer.warm_up_ns = backend().calibration.warm_up_ns;
      comm.timer.sample_ns = kContentionSampleNs;
    }
    profile.contention = time_contention(comm, default_contention());
  }

  /// A CPU's peak is its best product, its bandwidth that of its largest copy.
  static void add_device_figures(Profile& profile) {
    double largest = 0;
    for (const TaskPoint& point : profile.tasks) {
      const OpCost cost = spec_cost(point.spec);
      const auto ns = static_cast<double>(point.timing.ns);
      if (family_of(point.spec) == OpFamily::kGemm) {
        double& peak = profile.peak_flops_per_s[point.spec.operands[0].dtype];
        peak = std::max(peak, cost.flops / ns * 1e9);
      } else if (value_rule(point.spec) == ValueRule::kMoved && cost.bytes_read > largest) {
        largest = cost.bytes_read;
        profile.memory_bytes_per_s = (cost.bytes_read + cost.bytes_written) / ns * 1e9;
      }
    }
  }

  const CalibrateOptions& options_;
  const DeviceSpec& device_;
  int ranks_;  // at once
  int threads_;
  CalibrationGrid grid_;
  int64_t num_points_ = 0;
};

}  // namespace

Profile calibrate(const CalibrateOptions& options) {
  return Calibration(options).run();
}

namespace {

/// The largest group of the timed communication; 1 if there is none.
int most_ranks(const Profile& profile) {
  int most = 1;
  for (const CommPoint& point : profile.communication) {
    most = std::max(most, point.spec.placement.num_ranks);
  }
  return most;
}

/// Bytes per second over the link of a rank in each direction: the "bus bandwidth" of nccl-tests.
double link_rate(const CommPoint& point) {
  const auto n = static_cast<double>(point.spec.placement.num_ranks);
  const bool is_whole = point.spec.kind == CommKind::kSendRecv ||
                        point.spec.kind == CommKind::kBroadcast ||
                        point.spec.kind == CommKind::kReduce;
  const double part = is_whole                                  ? 1.0
                      : point.spec.kind == CommKind::kAllReduce ? 2 * (n - 1) / n
                                                                : (n - 1) / n;
  return part * static_cast<double>(point.spec.bytes) / static_cast<double>(point.timing.ns) * 1e9;
}

/// One line with the rates of the largest calls over the largest group.
std::string describe_communication(const Profile& profile) {
  const int num_ranks = most_ranks(profile);
  int64_t largest = 0;
  for (const CommPoint& point : profile.communication) {
    largest = std::max(largest, point.spec.bytes);
  }
  std::vector<std::string> rates;
  for (const CommPoint& point : profile.communication) {
    if (point.spec.placement.num_ranks == num_ranks && point.spec.bytes == largest) {
      rates.push_back(fmt::format("{}{} {:.3g}", comm_kind_name(point.spec.kind),
                                  uses_copy_engine(point.spec.algorithm) ? " by copies" : "",
                                  link_rate(point) * 1e-9));
    }
  }
  return fmt::format("links    {} points; {} between {} ranks, in GB/s: {}\n",
                     profile.communication.size(), format_bytes(largest), num_ranks,
                     join(rates, ", "));
}

}  // namespace

std::string default_profile_path(const Profile& profile) {
  const int num_ranks = most_ranks(profile);
  const DeviceSpec* const device = find_device(profile.device_kind);
  check(device != nullptr, "a profile of {}", profile.device_kind);
  return !device->is_host && num_ranks > 1
             ? fmt::format("profiles/{}x{}.json", profile.device_kind, num_ranks)
             : fmt::format("profiles/{}.json", profile.device_kind);
}

std::string describe_profile(const Profile& profile) {
  std::map<OpFamily, int64_t> counts;
  std::vector<double> spreads;
  const TaskPoint* widest = nullptr;
  for (const TaskPoint& point : profile.tasks) {
    ++counts[family_of(point.spec)];
    spreads.push_back(point.timing.spread);
    if (widest == nullptr || point.timing.spread > widest->timing.spread) {
      widest = &point;
    }
  }
  std::string text =
      fmt::format("device   {}, {}\n", profile.origin.device, profile.origin.software);
  for (const auto& [family, count] : counts) {
    text += fmt::format("shapes   {:>4} of {}\n", count, family_name(family));
  }
  text += fmt::format("task     {} from one to the next, {} per step\n",
                      format_duration(static_cast<double>(profile.launch_ns) * 1e-9),
                      format_duration(static_cast<double>(profile.step_overhead_ns) * 1e-9));
  if (!profile.communication.empty()) {
    text += describe_communication(profile);
  }
  if (profile.contention) {
    text += fmt::format("beside   communication products run at {}, sums at {} of their rates\n",
                        profile.contention->gemm_and_sm_comm.compute,
                        profile.contention->memory_bound_and_sm_comm.compute);
  }
  if (widest != nullptr) {
    std::sort(spreads.begin(), spreads.end());
    text += fmt::format("spread   median {:.1f}%, largest {:.1f}%: {}\n",
                        100 * spreads[spreads.size() / 2], 100 * widest->timing.spread,
                        describe_spec(widest->spec));
  }
  return text;
}

}  // namespace braid
