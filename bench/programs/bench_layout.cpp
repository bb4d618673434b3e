// How long it takes to build the training programs of all ranks of a large run with the real
// builder, to run the passes over them (each verified), to plan their memory, and to check all of
// them against each other. Programs of ranks that differ in their data position only are equal but
// for the ranks in their groups; they are built once.
//   braid_bench_layout [preset tensor context pipeline virtual_stages data global_batch]
//   default: llama-405b 8 2 16 8 64 2048

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "config/validate.h"
#include "large_layout.h"
#include "memory/memory_plan.h"
#include "parallel/step_program.h"
#include "parallel/verify_ranks.h"
#include "passes/pipeline.h"
#include "passes/runner.h"
#include "plan/model_setup.h"
#include "plan/parallel_setup.h"
#include "plan/run_spec.h"
#include "process_use.h"

namespace braid {
namespace {

struct Seconds {
  double build = 0;
  double passes = 0;
  double memory = 0;
};

/// The programs of all ranks, each distinct one once.
class LayoutPrograms {
 public:
  explicit LayoutPrograms(const RunConfig& config) : run_(resolve_run(config, 0)) {
    std::map<std::array<int, 3>, uint32_t> known;
    for (int rank = 0; rank < run_.mesh.num_ranks(); ++rank) {
      const MeshPosition at = run_.mesh.position(rank);
      const auto [found, is_new] = known.try_emplace({at.tensor, at.context, at.pipeline},
                                                     static_cast<uint32_t>(programs_.size()));
      if (is_new) {
        programs_.push_back(make_program(rank));
      }
      program_of_.push_back(found->second);
    }
  }

  RankPrograms ranks() const {
    RankPrograms ranks{.programs = {},
                       .program_of = program_of_,
                       .ranks_of_group = [this](int rank, GroupId group) {
                         const Program& program = programs_[program_of_[static_cast<size_t>(rank)]];
                         return run_.mesh.group(program.groups[group.index()].name, rank).ranks;
                       }};
    for (const Program& program : programs_) {
      ranks.programs.push_back(&program);
    }
    return ranks;
  }

  const std::vector<Program>& programs() const { return programs_; }
  const Seconds& seconds() const { return seconds_; }

 private:
  Program make_program(int rank) {
    ProcessorClock clock;
    Program program = build_train_program(
        run_.model, make_rank_layout(run_.model, run_.mesh, rank, run_.parallel), run_.mesh, rank,
        {.microbatch = run_.config.train.microbatch,
         .sequence = run_.config.train.sequence,
         .num_microbatches = run_.num_microbatches,
         .dtype = run_.dtype,
         .parallel = run_.parallel});
    seconds_.build += clock.lap();
    program = run_passes(std::move(program), default_pipeline()).program;
    seconds_.passes += clock.lap();
    const Program* const planned = &program;
    peak_bytes_ = std::max(peak_bytes_, plan_memory({&planned, 1}).peak_bytes());
    seconds_.memory += clock.lap();
    return program;
  }

  RunSpec run_;
  std::vector<Program> programs_;
  std::vector<uint32_t> program_of_;
  Seconds seconds_;
  int64_t peak_bytes_ = 0;
};

void measure(const RunConfig& config) {
  const LayoutPrograms layout(config);
  const double built_gib = peak_gib();
  ProcessorClock clock;
  const std::vector<Violation> violations =
      verify_ranks(layout.ranks(), {.one_order_of_collectives = true});
  const double verify_s = clock.lap();
  size_t tasks = 0;
  for (const Program& program : layout.programs()) {
    tasks += program.tasks.size();
  }
  const Seconds& seconds = layout.seconds();
  fmt::print("{} ranks, {} programs of {} tasks on average, {} microbatches\n",
             config.parallel.ranks, layout.programs().size(), tasks / layout.programs().size(),
             num_microbatches(config));
  fmt::print(
      "build {:.2f} s, passes and their checks {:.2f} s, memory plans {:.2f} s, verify_ranks "
      "{:.2f} s; together {:.2f} s\n",
      seconds.build, seconds.passes, seconds.memory, verify_s,
      seconds.build + seconds.passes + seconds.memory + verify_s);
  fmt::print("peak {:.2f} GiB, {:.2f} of them before verify_ranks\n", peak_gib(), built_gib);
  for (const Violation& violation : violations) {
    fmt::print("{}\n", violation.message);
  }
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  const braid::RunConfig config = braid::layout_of_arguments(argc, argv);
  try {
    braid::validate(config);
    braid::measure(braid::resolved(config));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
