#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "calibrate/calibrate.h"
#include "cli/commands.h"
#include "cli/config_arguments.h"
#include "cli/validators.h"
#include "config/choices.h"
#include "plan/run_spec.h"
#include "runtime/engine.h"
#include "runtime/progress_bar.h"
#include "sim/device_spec.h"
#include "sim/merge_profiles.h"

namespace braid {
namespace {

struct CalibrateArguments {
  std::string device = "auto";
  std::vector<std::string> configs;
  std::vector<std::string> overrides;
  std::string out;
  std::string like;
  int64_t threads = 0;
  int64_t ranks_at_once = 0;
  bool quick = false;
  bool only_config = false;
  std::string add_to;
  bool copy_engines = false;
};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The progress bar of the measurement; nothing if the output is not a terminal.
class CalibrationBar {
 public:
  explicit CalibrationBar(const Console& console)
      : bar_({.print = [&console](std::string_view text) { console.print_or_redraw(text); },
              .columns = terminal_columns,
              .now_ns = now_ns}),
        shown_(console.is_terminal()),
        begin_ns_(now_ns()) {}

  void update(const CalibrationProgress& progress) {
    if (!shown_) {
      return;
    }
    const auto done = static_cast<double>(progress.done);
    const double left_s = static_cast<double>(now_ns() - begin_ns_) * 1e-9 *
                          (static_cast<double>(progress.total) - done) / std::max(done, 1.0);
    bar_.update({.step = progress.done,
                 .num_steps = progress.total,
                 .seconds_left = progress.done > 0 ? left_s : -1});
  }
  void erase() { bar_.erase(); }

 private:
  ProgressBar bar_;
  bool shown_;
  int64_t begin_ns_;
};

/// Number of GPUs for communication measurements: the requested number, or the ranks of the run;
/// without a run, all GPUs.
int64_t num_ranks(const CalibrateArguments& arguments, const RunConfig& config,
                  const FoundGpus& gpus) {
  const Backend* const named = named_backend(config);
  if (gpus.usable.empty() || (named != nullptr && named->is_host)) {
    return config.parallel.ranks;
  }
  if (arguments.ranks_at_once > 0) {
    return arguments.ranks_at_once;
  }
  const bool all = arguments.configs.empty() && gpus.why_alone.empty();
  return all ? std::ssize(gpus.usable) : config.parallel.ranks;
}

/// The runs whose shapes are measured. One device times the tasks of all of them, so they must
/// agree on every setting that changes how it executes tasks.
std::vector<RunSpec> runs_of(const CalibrateArguments& arguments) {
  std::vector<RunSpec> runs;
  for (const std::string& path : arguments.configs) {
    const PlannedConfig planned = load_planned_config(path, arguments.overrides);
    const RunConfig& first = runs.empty() ? planned.config : runs.front().config;
    if (planned.config.train.dtype != first.train.dtype ||
        planned.config.runtime.repeatable != first.runtime.repeatable) {
      throw_config_error(
          "--config {}: train.dtype is {} and runtime.repeatable is {}, but in {} they are {} and "
          "{}; runs that are measured together must agree on both",
          quote(path, 128), planned.config.train.dtype, planned.config.runtime.repeatable,
          quote(arguments.configs.front(), 128), first.train.dtype, first.runtime.repeatable);
    }
    runs.push_back(resolve_run(planned.config, planned.tokenizer_vocabulary));
  }
  return runs;
}

/// The runs whose shapes are measured, and the device that runtime.device selects for the first
/// run, or for bfloat16 on one rank if no run is given.
CalibrateOptions options_of(const CalibrateArguments& arguments) {
  CalibrateOptions options{.stand_in = arguments.like,
                           .quick = arguments.quick,
                           .only_runs = arguments.only_config,
                           .cache_folder = user_cache_folder()};
  RunConfig config;
  config.train.dtype = choice_name(DType::kBF16);
  options.runs = runs_of(arguments);
  if (!options.runs.empty()) {
    config = options.runs.front().config;
  }
  if (choice<DeviceChoice>(arguments.device) != DeviceChoice::kAuto) {
    config.runtime.device = arguments.device;
  }
  config.runtime.ranks_per_gpu = 1;  // what is measured has a GPU of its own
  constexpr size_t kStreams = 2;     // compute, and communication beside it
  const FoundGpus gpus = find_gpus(kStreams);
  config.parallel.ranks = num_ranks(arguments, config, gpus);
  options.device = choose_device(config, gpus);
  options.copy_engines = arguments.copy_engines;
  options.threads = arguments.threads > 0 ? arguments.threads : config.runtime.threads;
  options.ranks_at_once =
      arguments.ranks_at_once > 0
          ? arguments.ranks_at_once
          : std::min<int64_t>(config.parallel.ranks, 2 * threads_per_rank(0, 1));
  return options;
}

std::vector<std::string> known_device_kinds() {
  std::vector<std::string> kinds;
  for (const DeviceSpec& device : known_devices()) {
    kinds.push_back(device.kind);
  }
  return kinds;
}

void write_profile(const Profile& profile, const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
      throw_data_error("cannot create the folder '{}': {}", folder.string(), error.message());
    }
  }
  write_file_atomically(path, print_profile(profile));
}

void run(const CalibrateArguments& arguments, const Console& console) {
  CalibrateOptions options = options_of(arguments);
  std::optional<Profile> older;
  if (!arguments.add_to.empty()) {
    older = load_profile(arguments.add_to);  // reports a bad file before spending minutes
  }
  console.print(describe_device(options.device));
  CalibrationBar bar(console);
  options.on_progress = [&bar](const CalibrationProgress& progress) { bar.update(progress); };
  const int64_t begin_ns = now_ns();
  Profile profile = calibrate(options);
  bar.erase();
  std::string path = arguments.out.empty() ? default_profile_path(profile) : arguments.out;
  if (older) {
    profile = merge_profiles(*older, profile);
    path = arguments.out.empty() ? arguments.add_to : arguments.out;
  }
  write_profile(profile, path);
  console.print(describe_profile(profile) +
                fmt::format("profile  {}, measured in {}\n", path,
                            format_duration(static_cast<double>(now_ns() - begin_ns) * 1e-9)));
}

}  // namespace

void add_calibrate_command(CLI::App& app, const Console& console) {
  const auto arguments = std::make_shared<CalibrateArguments>();
  CLI::App* command = app.add_subcommand(
      "calibrate", "Measure how long tasks take on this machine, for `braid plan --cost`");
  command->add_option("--device", arguments->device, "Device to measure")
      ->check(CLI::IsMember(device_names()))
      ->capture_default_str();
  command
      ->add_option("--config", arguments->configs,
                   "Run file whose shapes to measure too, in its dtype; may be repeated")
      ->type_name("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option("--set", arguments->overrides,
                   "Override a key of all run files: section.key=value; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->needs("--config");
  command
      ->add_option("--out", arguments->out,
                   "File to write (default: profiles/ and the kind of device)")
      ->type_name("FILE");
  command
      ->add_option(
          "--like", arguments->like,
          "Known device whose data sheet prices everything that is not measured (default: by name)")
      ->check(CLI::IsMember(known_device_kinds()));
  command
      ->add_option("--threads", arguments->threads,
                   "Compute threads of a CPU rank; 0 = as the run file says, or all cores divided "
                   "by the ranks")
      ->type_name("N")
      ->check(between(0, 4096));
  command
      ->add_option("--ranks-at-once", arguments->ranks_at_once,
                   "Ranks that communicate at the same time while they are timed; CPU ranks also "
                   "compute at the same time. 0 = the ranks of the run file (on a CPU at most "
                   "twice the cores), or without a run file all GPUs or one CPU rank")
      ->type_name("N")
      ->check(between(0, 64));
  command->add_flag("--copy-engines", arguments->copy_engines,
                    "With several GPUs: also time copy engines (overlap.comm_engine)");
  command->add_flag("--quick", arguments->quick, "Take only seconds: few shapes, few repetitions");
  command
      ->add_option("--add-to", arguments->add_to,
                   "Profile of the same device and software to extend: keeps its points except "
                   "those measured again. Written to --out, or without it to FILE itself")
      ->type_name("FILE");
  command
      ->add_flag(
          "--only-config", arguments->only_config,
          "Measure only the shapes of the run files; the known device prices everything else")
      ->needs("--config");
  command->footer(
      "Takes one or two minutes, or three on a GPU that must first choose its kernels. Run it on "
      "an idle machine.\ndocs/profiles.md explains the file.\n\n  braid calibrate --config "
      "examples/tiny_cpu.toml --out my.json\n  braid plan examples/tiny_cpu.toml --cost my.json");
  command->callback([arguments, &console] { run(*arguments, console); });
}

}  // namespace braid
