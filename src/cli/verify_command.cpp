#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "cli/commands.h"
#include "cli/config_arguments.h"
#include "cli/validators.h"
#include "plan/describe_layout.h"
#include "plan/run_spec.h"
#include "runtime/engine.h"
#include "verify/verify_layout.h"

namespace braid {
namespace {

// Gradients in f64: sums over ranks are in another order than on one rank. Losses in the dtype of
// the run, or of what gradients cross between ranks in: a few roundings of that dtype after three
// updates.
constexpr double kGradientTolerance = 1e-10;

double loss_tolerance(const RunSpec& run) {
  const bool rounds_to_bf16 =
      run.dtype == DType::kBF16 || run.parallel.reduce_dtype == DType::kBF16;
  return rounds_to_bf16 ? 2e-2 : 1e-5;
}

/// The run as it is. Throws ConfigError for a layout that only another model could have.
RunConfig possible(PlannedConfig loaded) {
  resolve_run(loaded.config, loaded.tokenizer_vocabulary);
  return std::move(loaded.config);
}

const TensorDifference& worst_of(const std::vector<TensorDifference>& tensors) {
  return *std::max_element(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return a.difference < b.difference;
  });
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

/// Each rank is a few threads of this process.
void check_ranks(const RunConfig& config) {
  constexpr int64_t kMostRanks = 512;
  if (config.parallel.ranks > kMostRanks) {
    const int64_t two_data_ranks = 2 * config.parallel.ranks / config.parallel.data;
    throw_config_error(
        "parallel.ranks = {}: braid verify runs ranks as threads of this machine, at most {}; {}",
        config.parallel.ranks, kMostRanks,
        two_data_ranks <= kMostRanks
            ? fmt::format(
                  "two data ranks are enough: --set parallel.data=2 --set parallel.ranks={}",
                  two_data_ranks)
            : "set fewer tensor, context or pipeline ranks");
  }
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
    check_ranks(planned.config);
    const RunConfig config = shrunken(possible(planned));
    const RunSpec run = resolve_run(config, 0);
    console.print(describe_layout(run));
    arguments->options.threads_per_rank =
        threads_per_rank(config.runtime.threads, config.parallel.ranks);
    const LayoutComparison comparison = compare_with_one_rank(run, arguments->options);
    console.print(describe(comparison));
    require_equal(comparison, loss_tolerance(run));
    console.print("equal     to one rank, up to the order of sums\n");
  });
}

}  // namespace braid
