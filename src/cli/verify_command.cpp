#include <CLI/CLI.hpp>
#include <memory>

#include "base/errors.h"
#include "cli/commands.h"
#include "cli/config_arguments.h"
#include "cli/validators.h"
#include "config/validate.h"
#include "plan/describe_layout.h"
#include "plan/more_room.h"
#include "runtime/engine.h"
#include "verify/run_to_verify.h"

namespace braid {
namespace {

/// Says so if `run` has fewer microbatches than the run file.
std::string describe_microbatches(const RunConfig& config, const RunSpec& run) {
  const int64_t all = num_microbatches(config);
  return run.num_microbatches == all
             ? ""
             : fmt::format(
                   "steps     of {} microbatches, not {}: the schedule has the same phases\n",
                   run.num_microbatches, all);
}

/// Says so if rows of experts that the run would not keep are kept here.
std::string describe_expert_room(const RunSpec& run) {
  if (!may_overflow(run) || run.reruns_overflow) {
    return "";
  }
  return fmt::format(
      "experts   have room for all rows here; with moe.capacity = {} and on_overflow = \"{}\" the "
      "run "
      "{}\n",
      run.config.moe.capacity, run.config.moe.on_overflow,
      run.parallel.drops_rows ? "drops those that do not fit, and differs from one rank"
                              : "stops where they do not fit");
}

std::string describe(const LayoutComparison& comparison) {
  const TensorDifference& gradient = worst_of(comparison.gradients);
  const TensorDifference& weight = worst_of(comparison.weights);
  std::string text = fmt::format(
      "gradients {} tensors in float64, largest difference from one rank {:.2g} ({}); loss "
      "{:.2g}\n",
      comparison.gradients.size(), gradient.difference, gradient.name, comparison.loss_f64);
  for (size_t i = 0; i < comparison.losses.size(); ++i) {
    text += fmt::format("step {}    loss {:.9g}, one rank {:.9g}\n", i + 1, comparison.losses[i],
                        comparison.one_rank_losses[i]);
  }
  return text +
         fmt::format(
             "weights   after {} steps, largest difference {:.2g} ({}); gradient norm {:.2g}\n",
             comparison.losses.size(), weight.difference, weight.name, comparison.grad_norm);
}

void require_equal(const LayoutComparison& comparison, double tolerance) {
  const TensorDifference& gradient = worst_of(comparison.gradients);
  check(gradient.difference <= kGradientTolerance,
        "the gradient of {} differs from that of one rank by {:.2g}, more than {:.2g}; this is a "
        "bug in braid",
        gradient.name, gradient.difference, kGradientTolerance);
  check(
      comparison.worst_loss() <= tolerance,
      "the loss differs from that of one rank by {:.2g}, more than {:.2g}; this is a bug in braid",
      comparison.worst_loss(), tolerance);
}

}  // namespace

void add_verify_command(CLI::App& app, const Console& console) {
  struct VerifyArguments {
    ConfigArguments config;
    VerifyOptions options;
  };
  const auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command = app.add_subcommand(
      "verify", "Compare losses and every gradient of a layout with one rank, on a shrunken model");
  add_config_arguments(*command, arguments->config);
  command->add_option("--steps", arguments->options.steps, "Number of optimizer steps to compare")
      ->check(between(1, 100))
      ->capture_default_str();
  command->footer(
      "Ranks are threads of this machine. The model keeps its layers and heads, and the run keeps "
      "its layout;\nwidths, sequence and vocabulary become tiny. Needs no data and no device.\n\n  "
      "braid verify run.toml --set parallel.ranks=8 --set parallel.tensor=2 --set "
      "parallel.pipeline=2");
  command->callback([arguments, &console] {
    const auto planned = load_planned_config(arguments->config);
    const RunSpec run = run_to_verify(planned.config, planned.tokenizer_vocabulary);
    console.print(describe_layout(run) + describe_microbatches(planned.config, run) +
                  describe_expert_room(run));
    arguments->options.threads_per_rank =
        threads_per_rank(run.config.runtime.threads, run.config.parallel.ranks);
    const LayoutComparison comparison = compare_with_one_rank(run, arguments->options);
    console.print(describe(comparison));
    require_equal(comparison, loss_tolerance(run));
    console.print("equal     to one rank, up to the order of sums\n");
  });
}

}  // namespace braid
