#include "plan/build_programs.h"

#include <utility>

#include "parallel/step_program.h"

namespace braid {

std::vector<Program> build_programs(const RunSpec& run, const ParameterLayout& layout, int rank,
                                    const BuildOptions& options) {
  const DType dtype = options.dtype.value_or(run.dtype);
  std::optional<Fp8Recipe> fp8 = dtype == run.dtype ? run.fp8 : std::nullopt;
  std::vector<Program> programs;
  programs.push_back(build_train_program(run.model, layout, run.mesh, rank,
                                         {.microbatch = run.microbatch_sequences,
                                          .sequence = run.config.train.sequence,
                                          .num_microbatches = run.num_microbatches,
                                          .dtype = dtype,
                                          .fp8 = fp8,
                                          .z_loss = run.config.train.z_loss,
                                          .preference = run.preference,
                                          .router_losses = run.router_losses,
                                          .documents = run.documents,
                                          .watch_experts = run.watch_experts,
                                          .watch_room = run.watch_room,
                                          .routing = run.routing,
                                          .optimizer = run.optimizer,
                                          .update_weights = options.update_weights,
                                          .outline = options.outline,
                                          .parallel = run.parallel}));
  if (options.outline) {
    return programs;
  }
  if (fp8) {
    fp8->watch = false;
  }
  programs.push_back(build_eval_program(run.model, layout, run.mesh, rank,
                                        {.microbatch = run.microbatch_sequences,
                                         .sequence = run.config.train.sequence,
                                         .dtype = dtype,
                                         .fp8 = fp8,
                                         .preference = run.preference,
                                         .documents = run.documents,
                                         .parallel = run.parallel}));
  return programs;
}

}  // namespace braid
