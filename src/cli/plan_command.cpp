#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/config_arguments.h"
#include "cli/plan_search.h"
#include "cli/routing_arguments.h"
#include "config/reference.h"
#include "ir/text.h"
#include "plan/describe_layout.h"
#include "plan/device_cost.h"
#include "plan/memory_needs.h"
#include "plan/rank_kinds.h"
#include "plan/rank_programs.h"
#include "plan/row_exchange_setup.h"
#include "plan/run_costs.h"
#include "plan/run_plan.h"
#include "plan/stack_gain.h"
#include "plan/step_prediction.h"
#include "runtime/choose_settings.h"
#include "runtime/host_memory.h"
#include "runtime/memory_check.h"
#include "runtime/progress_bar.h"
#include "runtime/room_needs.h"
#include "sim/cluster.h"
#include "sim/device_file.h"
#include "sim/device_spec.h"
#include "sim/measured_model.h"
#include "state/state_map.h"

namespace braid {
namespace {

/// Width of the table. A file has no width, but its lines should still be readable.
int table_width(const Console& console) {
  constexpr int kNarrowest = 40;
  return console.is_terminal() ? std::max(kNarrowest, terminal_columns()) : 160;
}

std::string known_gpu_names() {
  std::vector<std::string_view> names;
  for (const DeviceSpec& device : known_devices()) {
    if (memory_of(device)) {
      names.push_back(device.kind);
    }
  }
  return join(names, ", ");
}

/// The value of --device-memory; nullopt if it is not given.
std::optional<GpuMemory> given_memory(const std::string& text) {
  if (text.empty()) {
    return std::nullopt;
  }
  if (const std::optional<int64_t> size_bytes = parse_byte_size(text)) {
    return GpuMemory{.name = "a GPU of that size", .free_bytes = *size_bytes};
  }
  const DeviceSpec* const device = find_device(text);
  const std::optional<GpuMemory> memory = names_device_file(text) ? memory_of(load_device(text))
                                          : device == nullptr     ? std::nullopt
                                                                  : memory_of(*device);
  if (!memory) {
    throw_config_error(
        "--device-memory = {}: give a size with its unit, like 80GiB or 80GB, or a GPU out of {}, "
        "or the path of "
        "a device file",
        quote(text, 64), known_gpu_names());
  }
  return memory;
}

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

void check_rank(const RunSpec& run, int rank) {
  if (rank >= run.mesh.num_ranks()) {
    throw_config_error("--rank {}: the ranks are 0 to {}", rank, run.mesh.num_ranks() - 1);
  }
}

std::string program_of_rank(const RunSpec& run, int rank) {
  check_rank(run, rank);
  const RunPlan plan = plan_run(run, {.ranks = {rank}});
  return print_program(plan.ranks.front().programs[kTrainProgram]);
}

/// What braid gains over --stack; nothing without that option.
std::string stack_text(const RunSpec& run, const CostModel& model, const std::string& cost,
                       const std::string& stack) {
  if (stack.empty()) {
    return "";
  }
  if (names_profile(cost)) {
    throw_config_error(
        "--stack {}: the profile {} has braid's measured costs; give a cluster as --cost", stack,
        cost);
  }
  return describe_stack_gain(stack_gain(run, model, stack));
}

/// With a blank line between two programs.
std::string programs_of_all_kinds(const RunSpec& run) {
  std::vector<std::string> texts;
  for (const RankPlan& rank : plan_every_rank(run).ranks) {
    texts.push_back(print_program(rank.programs[kTrainProgram]));
  }
  return join(texts, "\n");
}

/// Everything that a process plans before it allocates memory, and the time that took.
std::string describe_start(const RunSpec& run, int rank) {
  check_rank(run, rank);
  const Stopwatch watch;
  const RunPlan plan = plan_for_rank(run, rank);
  const ShownCalls shown = shown_calls(plan_of_rank(plan, rank));
  const StateMap state = make_state_map(plan);
  return describe_layout(run) + describe_ranks(plan) +
         fmt::format(
             "process   rank {} plans {} programs and finds {} buffers of state in {:.1f} "
             "s; peak memory {}\n",
             rank, shown.size() * plan.ranks.size(), state.buffers().size(), watch.seconds(),
             format_bytes(peak_process_bytes()));
}

std::string describe_all_ranks(const RunSpec& run) {
  const Stopwatch watch;
  const PlannedKinds kinds = plan_every_rank(run);
  verify_kinds(run.mesh, kinds);
  return describe_layout(run) +
         fmt::format("verified  {} ranks, of {} kinds, fit together; {:.1f} s, peak memory {}\n",
                     run.mesh.num_ranks(), kinds.alike.num_kinds(), watch.seconds(),
                     format_bytes(peak_process_bytes()));
}

}  // namespace

void add_plan_command(CLI::App& app, const Console& console) {
  struct PlanArguments {
    ConfigArguments config;
    bool print_program = false;
    bool dry_run = false;
    bool all_ranks = false;
    std::optional<int> rank;
    std::string cost;
    std::string stack;
    std::string device_memory;
    PlanSearchArguments search;
    RoutingArguments routing;
  };
  const auto arguments = std::make_shared<PlanArguments>();
  CLI::App* command = app.add_subcommand(
      "plan", "Show what a run needs (programs, passes, memory by class) without starting it");
  add_config_arguments(*command, arguments->config);
  CLI::Option* program =
      command->add_flag("--program", arguments->print_program,
                        "Print the training program of rank 0 as text instead, of another rank "
                        "with --rank, or of one rank of each kind with --all-ranks");
  CLI::Option* dry_run = command->add_flag(
      "--dry-run", arguments->dry_run,
      "Print only the layout: ranks, a line per pipeline stage, and the schedule");
  CLI::Option* cost = command
                          ->add_option("--cost", arguments->cost,
                                       "Also predict the step, with a profile of `braid calibrate` "
                                       "(a path) or a cluster like h200x8 or h100x1024")
                          ->type_name("PROFILE|CLUSTER")
                          ->excludes(program);
  command
      ->add_option("--stack", arguments->stack,
                   "With a cluster as --cost: also simulate the step under the software that you "
                   "run, and say what braid would gain: megatron-te, fsdp2-compiled, eager, "
                   "megatron-2021, or the path of a file (docs/stacks.md)")
      ->type_name("STACK")
      ->needs(cost);
  command
      ->add_option("--device-memory", arguments->device_memory,
                   "Also check that each rank fits a GPU with this much memory: a size like 80GiB "
                   "or 80GB, or a device like h100. If not, print the nearest setting that fits "
                   "and exit with status 2. --cost always compares with its own device's memory")
      ->type_name("SIZE|DEVICE")
      ->excludes(program);
  CLI::Option* rank =
      command
          ->add_option("--rank", arguments->rank,
                       "Instead, plan what the process of this rank plans when it starts, and "
                       "print how long that takes and how much memory it needs")
          ->check(CLI::NonNegativeNumber);
  CLI::Option* all_ranks =
      command
          ->add_flag("--all-ranks", arguments->all_ranks,
                     "Plan all ranks, one after the other, and check that they fit together. "
                     "`braid train` does the same with one rank of each kind")
          ->excludes(rank);
  command->footer(
      "Needs no data and no device, and no tokenizer if the run file gives the vocabulary. For a "
      "run with many\nranks, it plans one rank per pipeline stage.\n\n  braid plan "
      "bench/gpu/cases/llama-1b.toml --cost h200\n  braid plan run.toml --cost h100x64 "
      "--stack megatron-te\n  braid plan "
      "bench/gpu/cases/multi/llama-8b-zero3.toml --device-memory 80GiB\n  braid plan run.toml "
      "--search --cluster h200x64 --save-best best.toml");
  add_search_options(*command, arguments->search);
  add_routing_options(*command, arguments->routing);
  for (const char* const option : {"--routing-skew", "--routing-loads"}) {
    command->get_option(option)->needs(cost);
  }
  for (CLI::Option* const other : {program, dry_run, cost, rank, all_ranks}) {
    command->get_option("--search")->excludes(other);
  }
  command->callback([arguments, &console] {
    if (arguments->search.search) {
      const std::optional<GpuMemory> memory = given_memory(arguments->device_memory);
      run_plan_search(arguments->config, arguments->search, memory ? memory->free_bytes : 0,
                      console);
      return;
    }
    PlannedConfig loaded = load_planned_config(arguments->config);
    if (loaded.config.overlap.cost == kDeviceCost && !arguments->cost.empty()) {
      loaded.config.overlap.cost = arguments->cost;
    }
    ChooseOverlapOptions options;
    if (!arguments->print_program) {
      options = {.print = [&console](std::string_view text) { console.print_or_redraw(text); },
                 .progress_bar = console.is_terminal()};
    }
    std::unique_ptr<CostModel> model;
    std::optional<GpuMemory> gpu = given_memory(arguments->device_memory);
    if (!arguments->cost.empty()) {
      model = with_links_of_run(
          load_cost_model(arguments->cost, static_cast<int>(loaded.config.parallel.ranks)),
          loaded.config.links);
      gpu = gpu ? gpu : memory_of(model->cluster().device);
      loaded.config = with_exchange(std::move(loaded.config), model->cluster());
    }
    const RunMemory memory{.gpu = gpu, .host_bytes = std::nullopt};
    const RunSpec run = choose_settings(resolve_run(loaded.config, loaded.tokenizer_vocabulary),
                                        gpu ? std::optional(memory) : std::nullopt, options);
    if (arguments->print_program) {
      console.print(arguments->all_ranks ? programs_of_all_kinds(run)
                                         : program_of_rank(run, arguments->rank.value_or(0)));
      return;
    }
    if (arguments->rank) {
      console.print(describe_start(run, *arguments->rank));
      return;
    }
    if (arguments->all_ranks) {
      console.print(describe_all_ranks(run));
      return;
    }
    const RunPlan plan = plan_run(run, {.one_rank_per_stage = true});
    std::string text;
    if (!arguments->dry_run) {
      text += to_toml(run.config) + "\n" + describe_run_plan(plan) + "\n";
    }
    text +=
        describe_layout(run) + describe_ranks(plan) + describe_schedule(run, table_width(console));
    if (model) {
      text += describe_prediction(plan, *model);
      if (const std::optional<RoutingLoads> loads = routing_loads(arguments->routing, run)) {
        text += describe_skewed_prediction(plan, *model, *loads);
      }
      text += stack_text(run, *model, arguments->cost, arguments->stack);
    }
    const std::vector<MemoryUse> uses = memory_uses(plan, memory);
    console.print(text + describe_uses(uses) + describe_more_room(plan, memory) +
                  (gpu ? gpu->backend->describe_communication_needs(
                             plan_of_rank(plan, uses.front().rank.value()).programs)
                       : ""));
    if (!arguments->device_memory.empty()) {
      check_memory(plan, memory);
    }
  });
}

}  // namespace braid
