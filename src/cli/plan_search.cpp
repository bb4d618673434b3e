#include "cli/plan_search.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/config_arguments.h"
#include "cli/stop_signals.h"
#include "cli/validators.h"
#include "config/choices.h"
#include "config/load.h"
#include "config/reference.h"
#include "config/validate.h"
#include "plan/row_exchange_setup.h"
#include "plan/run_costs.h"
#include "runtime/progress_bar.h"
#include "sim/analytic_model.h"
#include "sim/measured_model.h"
#include "state/resumed_model.h"
#include "tune/describe_search.h"
#include "tune/search_layouts.h"

namespace braid {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// A progress bar per part of the search; nothing if the output is not a terminal.
class SearchBar {
 public:
  explicit SearchBar(const Console& console)
      : bar_({.print = [&console](std::string_view text) { console.print_or_redraw(text); },
              .columns = terminal_columns,
              .now_ns = now_ns}),
        shown_(console.is_terminal()) {}

  void update(const SearchProgress& progress) {
    if (!shown_) {
      return;
    }
    if (progress.part != part_) {
      part_ = progress.part;
      begin_ns_ = now_ns();
    }
    const double done = static_cast<double>(std::max<int64_t>(progress.done, 1));
    const double left_s = static_cast<double>(now_ns() - begin_ns_) * 1e-9 *
                          static_cast<double>(progress.total - progress.done) / done;
    bar_.update({.step = progress.done, .num_steps = progress.total, .seconds_left = left_s});
  }
  void erase() {
    if (shown_) {
      bar_.erase();
    }
  }

 private:
  ProgressBar bar_;
  bool shown_;
  std::string part_;
  int64_t begin_ns_ = 0;
};

/// Fixed keys: those of --fix, and those given by --set.
std::set<std::string, std::less<>> fixed_keys(const ConfigArguments& config,
                                              const PlanSearchArguments& arguments) {
  std::set<std::string, std::less<>> keys;
  for (const std::string& key : arguments.fixed) {
    check_searched_key(key);
    keys.insert(key);
  }
  for (const std::string& text : config.overrides) {
    const std::string key(trim(text.substr(0, text.find('='))));
    if (std::ranges::find(searched_keys(), key) != searched_keys().end()) {
      keys.insert(key);
    }
  }
  return keys;
}

/// Reports mistakes of the run file itself before any layout is tried. Checks it for one rank
/// without overlap keys.
void check_without_layout(const RunConfig& config) {
  const bool pairs = choice<PreferenceChoice>(config.preference.loss) != PreferenceChoice::kNone;
  RunConfig neutral = with_layout(config, Layout{.microbatch = pairs ? 2 : 1});
  neutral.parallel.pipeline_layout.clear();
  neutral.parallel.first_stage_layers = neutral.parallel.last_stage_layers = 0;
  neutral.overlap = OverlapConfig{};
  validate(neutral);
}

bool sets_ranks(const ConfigArguments& config) {
  return std::ranges::any_of(config.overrides, [](const std::string& text) {
    return trim(text.substr(0, text.find('='))) == "parallel.ranks";
  });
}

/// The cluster, with as many more nodes as --ranks needs; or the profile's device, for a CPU with
/// the links of the run.
std::unique_ptr<CostModel> search_model(const PlanSearchArguments& arguments, bool ranks_are_set,
                                        RunConfig& config) {
  if (arguments.cluster.empty() == arguments.profile.empty()) {
    throw_config_error(
        "--search needs a machine: give --cluster (h200x8, h100x1024) or --profile (a file of "
        "`braid calibrate`), not both");
  }
  int64_t& ranks = config.parallel.ranks;
  ranks = arguments.num_ranks > 0 ? arguments.num_ranks : ranks;
  if (!arguments.profile.empty()) {
    return with_links_of_run(
        make_measured_model(load_profile(arguments.profile), static_cast<int>(ranks)),
        config.links);
  }
  Cluster cluster = parse_cluster(arguments.cluster);
  if (arguments.num_ranks == 0 && !ranks_are_set) {
    ranks = cluster.num_devices;
  }
  if (ranks > cluster.num_devices) {
    throw_config_error("cluster {} has {} devices, fewer than the {} ranks; use {}", cluster.name,
                       cluster.num_devices, ranks,
                       cluster_for_ranks(cluster, static_cast<int>(ranks)).name);
  }
  return make_analytic_model(cluster);
}

}  // namespace

void add_search_options(CLI::App& command, PlanSearchArguments& arguments) {
  CLI::Option* const search =
      command.add_flag("--search", arguments.search,
                       "Instead, search for the layout with the fastest simulated step: tensor, "
                       "context, pipeline and data ranks, schedule, shards, microbatch, recompute. "
                       "Keys given by --set keep their value");
  const auto add = [&](const char* name, auto& value, const char* text, const char* type) {
    return command.add_option(name, value, text)->type_name(type)->needs(search);
  };
  add("--cluster", arguments.cluster,
      "For --search: devices and their number, like h200x8 or h100x1024; costs come from data "
      "sheets",
      "CLUSTER");
  add("--profile", arguments.profile,
      "For --search, instead of --cluster: a profile of `braid calibrate`, for as many devices as "
      "there are ranks",
      "FILE");
  add("--ranks", arguments.num_ranks,
      "For --search: number of ranks to use, instead of the whole cluster", "N")
      ->check(between(1, kMaxClusterDevices));
  add("--fix", arguments.fixed,
      "For --search: keys that keep the value of the run file, like "
      "parallel.tensor,train.microbatch",
      "KEYS")
      ->delimiter(',');
  add("--vary", arguments.varied,
      "For --search: keys to choose, too, although they change the numbers of the training: "
      "optimizer.moments_dtype, optimizer.main_grads_dtype",
      "KEYS")
      ->delimiter(',');
  add("--top", arguments.top, "For --search: rows of the table (10)", "N")->check(between(1, 1000));
  add("--simulate", arguments.num_simulated,
      "For --search: number of layouts to simulate, the best by estimate (40)", "N")
      ->check(between(1, 100'000));
  add("--max-tensor", arguments.max_tensor,
      "For --search: largest number of tensor ranks (default: the devices of a node)", "N")
      ->check(at_least(1));
  add("--max-context", arguments.max_context,
      "For --search: largest number of context ranks (default: as many as leave each rank 512 "
      "tokens of a sequence)",
      "N")
      ->check(at_least(1));
  add("--max-microbatch", arguments.max_microbatch,
      "For --search: largest number of sequences in a microbatch (16)", "N")
      ->check(at_least(1));
  add("--threads", arguments.threads,
      "For --search: number of threads, 0 = all cores; the result is the same", "N")
      ->check(between(0, 4096));
  add("--save-best", arguments.save_best, "For --search: write the best layout as a run file",
      "FILE");
  command.add_flag("--json", arguments.json, "For --search: print a JSON object instead of text")
      ->needs(search);
}

void run_plan_search(const ConfigArguments& config_arguments, const PlanSearchArguments& arguments,
                     int64_t device_memory_bytes, const Console& console) {
  RunConfig config =
      with_resumed_model(load_config(config_arguments.path, config_arguments.overrides));
  check_without_layout(config);
  const auto model = search_model(arguments, sets_ranks(config_arguments), config);
  config = with_exchange(std::move(config), model->cluster());
  SearchBar bar(console);
  SearchOptions options{
      .limits = {.max_tensor = arguments.max_tensor,
                 .max_context = arguments.max_context,
                 .max_microbatch = arguments.max_microbatch,
                 .fixed = fixed_keys(config_arguments, arguments),
                 .varied = {arguments.varied.begin(), arguments.varied.end()}},
      .num_simulated = arguments.num_simulated,
      .num_threads = static_cast<int>(arguments.threads),
      .on_progress = [&bar](const SearchProgress& progress) { bar.update(progress); },
      .stop_requested = stop_requested};
  if (!arguments.json) {
    options.on_found = [&, is_first = true](const LayoutSearch& found) mutable {
      bar.erase();
      console.print(describe_found(found, is_first ? static_cast<size_t>(arguments.top) : 0));
      is_first = is_first && found.ranked.empty();
    };
  }
  if (device_memory_bytes > 0) {
    options.memory_bytes = device_memory_bytes;
  }
  install_stop_signals();
  const LayoutSearch found = search_layouts(config, tokenizer_vocabulary(config), *model, options);
  bar.erase();
  if (!arguments.save_best.empty()) {
    write_file_atomically(arguments.save_best, to_toml(found.ranked.front().config));
  }
  const auto rows = static_cast<size_t>(arguments.top);
  console.print(
      arguments.json
          ? search_json(found, config, rows)
          : "cost      " + model->description() + "\n" +
                describe_search(found, config, {.rows = rows, .run_file = config_arguments.path}));
}

}  // namespace braid
