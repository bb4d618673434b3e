#include "runtime/run_plan.h"

#include <algorithm>
#include <utility>

#include "base/env.h"
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

}  // namespace

RankPlan plan_rank(std::vector<Program> programs, const OverlapConfig& overlap) {
  const DebugOptions debug = read_debug_options();
  const std::vector<Pass> pipeline = default_pipeline();
  RankPlan plan;
  for (size_t i = 0; i < programs.size(); ++i) {
    RunOptions options{.disabled_passes = disabled_passes(overlap, debug),
                       .verify = debug.verify.value_or(true)};
    if (!debug.dump_program_folder.empty()) {
      options.dump_folder = fmt::format("{}/rank{}.{}", debug.dump_program_folder, programs[i].rank,
                                        programs[i].name);
    }
    PipelineResult result = run_passes(std::move(programs[i]), pipeline, {}, options);
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
  plan.layout = make_parameter_layout(model_parameters(plan.model));
  plan.mesh = Mesh({.tensor = static_cast<int>(config.parallel.tensor),
                    .context = static_cast<int>(config.parallel.context),
                    .data = static_cast<int>(config.parallel.data),
                    .pipeline = static_cast<int>(config.parallel.pipeline)});
  plan.num_microbatches = num_microbatches(config);
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
