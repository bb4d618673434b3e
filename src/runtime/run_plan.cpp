#include "runtime/run_plan.h"

#include <algorithm>
#include <utility>

#include "base/env.h"
#include "base/errors.h"
#include "base/text.h"
#include "config/validate.h"
#include "parallel/step_program.h"
#include "passes/pipeline.h"
#include "runtime/model_setup.h"

namespace braid {
namespace {

/// Passes that a mode of [overlap] turns off, besides those that the user names.
std::vector<std::string> disabled_passes(const OverlapConfig& overlap, const DebugOptions& debug) {
  std::vector<std::string> disabled = overlap.disable_passes;
  disabled.insert(disabled.end(), debug.disabled_passes.begin(), debug.disabled_passes.end());
  const bool off = overlap.mode == "off";
  if (off || (overlap.mode == "manual" && !overlap.overlap_grad_reduce)) {
    disabled.emplace_back("overlap_grad_reduce");
  }
  if (off) {
    disabled.emplace_back(
        "assign_streams");  // communication stays between the compute tasks, hidden by nothing
  }
  return disabled;
}

DType compute_dtype(const TrainConfig& train) {
  return train.dtype == "bfloat16" ? DType::kBF16 : DType::kF32;
}

TrainProgramOptions train_options(const RunConfig& config, int64_t microbatches) {
  return {.microbatch = config.train.microbatch,
          .sequence = config.train.sequence,
          .num_microbatches = microbatches,
          .dtype = compute_dtype(config.train),
          .optimizer = {.beta1 = config.optimizer.beta1,
                        .beta2 = config.optimizer.beta2,
                        .epsilon = config.optimizer.epsilon,
                        .weight_decay = config.optimizer.weight_decay,
                        .max_grad_norm = config.optimizer.clip_norm}};
}

/// Names the option, which the pass runner does not know.
std::string disabling_options(const OverlapConfig& overlap, const DebugOptions& debug) {
  const bool variable = !debug.disabled_passes.empty();
  const bool key = !overlap.disable_passes.empty();
  return variable && key ? "overlap.disable_passes or environment variable BRAID_DISABLE_PASSES"
         : variable      ? "environment variable BRAID_DISABLE_PASSES"
                         : "overlap.disable_passes";
}

/// Beyond these a program does not fit the memory or the patience of those who build it, and sizes
/// in bytes do not fit 64 bits.
constexpr double kMaxParameters = 0x1p44;
constexpr double kMaxTensorElems = 0x1p44;
constexpr int64_t kMaxJobs = 1 << 18;

void check_model_size(const ModelSpec& model) {
  const auto width = static_cast<double>(model.width);
  const double heads =
      static_cast<double>(model.heads + model.kv_heads) * static_cast<double>(model.head_size);
  const double layer = width * (2 * heads + 3 * static_cast<double>(model.ffn));
  const double parameters = static_cast<double>(model.layers) * layer +
                            2 * width * static_cast<double>(model.padded_vocabulary());
  if (parameters > kMaxParameters) {
    throw_config_error(
        "a model of {:.3g} parameters is too large to plan, the limit is {:.3g}; lower "
        "model.layers "
        "= {}, model.width = {}, model.ffn = {} or model.vocabulary = {}",
        parameters, kMaxParameters, model.layers, model.width, model.ffn, model.vocabulary);
  }
}

void check_batch_size(const TrainConfig& train, const ModelSpec& model) {
  const int64_t widest =
      std::max({qkv_width(model), 2 * model.ffn, model.width, model.padded_vocabulary()});
  const double elems = static_cast<double>(train.microbatch) * static_cast<double>(train.sequence) *
                       static_cast<double>(widest);
  if (elems > kMaxTensorElems) {
    throw_config_error(
        "train.microbatch = {} x train.sequence = {} makes a tensor of {:.3g} values, the limit is "
        "{:.3g}; lower either",
        train.microbatch, train.sequence, elems, kMaxTensorElems);
  }
}

/// Passes of one microbatch over one layer, on all ranks: each is a dozen tasks or two.
void check_program_size(const RunConfig& config, const RunPlan& plan) {
  const int64_t layers = plan.model.layers + 2;  // embedding and head
  const int64_t jobs = plan.mesh.num_ranks() * plan.num_microbatches * layers;
  if (jobs > kMaxJobs) {
    throw_config_error(
        "train.global_batch = {} with train.microbatch = {} makes {} microbatches per step on each "
        "of {} ranks; with {} layers these are {} passes over a layer, and the limit is {}; raise "
        "train.microbatch or lower train.global_batch or parallel.ranks",
        config.train.global_batch, config.train.microbatch, plan.num_microbatches,
        plan.mesh.num_ranks(), layers, jobs, kMaxJobs);
  }
}

PipelineResult run_pipeline(Program program, const RunOptions& options,
                            const std::string& option_names) {
  try {
    return run_passes(std::move(program), default_pipeline(), {}, options);
  } catch (const ConfigError& error) {
    throw_config_error("{}: {}", option_names, error.what());
  }
}

}  // namespace

RankPlan plan_rank(std::vector<Program> programs, const OverlapConfig& overlap) {
  const DebugOptions debug = read_debug_options();
  RankPlan plan;
  for (size_t i = 0; i < programs.size(); ++i) {
    RunOptions options{.disabled_passes = disabled_passes(overlap, debug),
                       .verify = debug.verify.value_or(true)};
    if (!debug.dump_program_folder.empty()) {
      options.dump_folder = fmt::format("{}/rank{}.{}", debug.dump_program_folder, programs[i].rank,
                                        programs[i].name);
    }
    PipelineResult result =
        run_pipeline(std::move(programs[i]), options, disabling_options(overlap, debug));
    plan.programs.push_back(std::move(result.program));
    if (i == kTrainProgram) {
      plan.passes = std::move(result.records);
    }
  }
  std::vector<const Program*> pointers;
  for (const Program& program : plan.programs) {
    pointers.push_back(&program);
  }
  plan.memory = plan_memory(pointers);
  return plan;
}

RunPlan plan_run(const RunConfig& config, int64_t tokenizer_vocabulary) {
  RunPlan plan;
  plan.model = resolve_model(config.model, config.train.sequence, tokenizer_vocabulary);
  check_model_size(plan.model);
  check_batch_size(config.train, plan.model);
  plan.layout = make_parameter_layout(model_parameters(plan.model));
  plan.mesh = Mesh({.tensor = static_cast<int>(config.parallel.tensor),
                    .context = static_cast<int>(config.parallel.context),
                    .data = static_cast<int>(config.parallel.data),
                    .pipeline = static_cast<int>(config.parallel.pipeline)});
  plan.num_microbatches = num_microbatches(config);
  check_program_size(config, plan);
  for (int rank = 0; rank < plan.mesh.num_ranks(); ++rank) {
    std::vector<Program> programs;
    programs.push_back(build_train_program(plan.model, plan.layout, plan.mesh, rank,
                                           train_options(config, plan.num_microbatches)));
    programs.push_back(build_eval_program(plan.model, plan.layout, plan.mesh, rank,
                                          {.microbatch = config.train.microbatch,
                                           .sequence = config.train.sequence,
                                           .dtype = compute_dtype(config.train)}));
    plan.ranks.push_back(plan_rank(std::move(programs), config.overlap));
  }
  return plan;
}

std::string describe_run_plan(const RunPlan& plan, const RunConfig& config) {
  const RankPlan& rank = plan.ranks.front();
  const Program& train = rank.programs[kTrainProgram];
  std::string text = fmt::format("model    {}\n", describe_model(plan.model));
  text += fmt::format(
      "step     {} ranks x {} microbatches x {} sequences x {} tokens = {} tokens\n",
      plan.mesh.num_ranks(), plan.num_microbatches, config.train.microbatch, config.train.sequence,
      format_count(config.train.global_batch * config.train.sequence));
  text +=
      fmt::format("program  {} tasks, {} buffers, {} streams, {} events per rank\n",
                  train.tasks.size(), train.buffers.size(), train.streams.size(), train.num_events);
  for (const PassRecord& pass : rank.passes) {
    text += fmt::format("pass     {:<22} {:>8.3f} ms  {}\n", pass.name,
                        static_cast<double>(pass.duration_ns) * 1e-6,
                        pass.skipped ? "skipped: " + pass.report.summary : pass.report.summary);
  }
  return text + describe_plan(rank.memory);
}

}  // namespace braid
