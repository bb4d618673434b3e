// How long the ranks of a large run need to agree who writes what of a checkpoint: where the state
// lies, and its pieces. Each process of a run does this for all ranks.
//   braid_bench_state [preset tensor context pipeline virtual_stages data global_batch [shard]]
//   512 ranks: llama-405b 8 1 16 1 4 64 optimizer

#include <fmt/core.h>

#include <exception>
#include <vector>

#include "config/validate.h"
#include "large_layout.h"
#include "plan/run_plan.h"
#include "process_use.h"
#include "state/state_map.h"
#include "state/state_shards.h"

namespace braid {
namespace {

void measure(const RunConfig& config) {
  const RunPlan plan =
      plan_run(resolve_run(config, 0), {.one_rank_per_stage = true, .verify = false});
  ProcessorClock clock;
  const StateMap map = make_state_map(plan);
  const double map_s = clock.lap();
  const auto pieces = assign_pieces(map, plan.layout, plan.run.model);
  const double pieces_s = clock.lap();
  size_t num_pieces = 0;
  for (const auto& of_rank : pieces) {
    num_pieces += of_rank.size();
  }
  fmt::print("{} ranks, {} parameters: map {:.2f} s, {} pieces {:.2f} s, {:.2f} GiB\n",
             config.parallel.ranks, plan.layout.parameters.size(), map_s, num_pieces, pieces_s,
             peak_gib());
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  try {
    braid::RunConfig config = braid::layout_of_arguments(argc, argv);
    if (argc > 8) {
      config.parallel.shard = argv[8];
    }
    braid::validate(config);
    braid::measure(braid::resolved(config));
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
