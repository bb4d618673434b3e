#include "tune/auto_overlap.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "config/load.h"
#include "plan/run_spec.h"
#include "sim/measured_model.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

RunConfig config_of(const std::string& keys) {
  std::vector<std::string> overrides = {
      "model.family=llama",    "model.layers=4",          "model.width=24",
      "model.heads=4",         "model.kv_heads=2",        "model.head_size=4",
      "model.ffn=24",          "train.microbatch=1",      "train.sequence=16",
      "train.global_batch=16", "logging.run_folder=none", "overlap.cost=h200x8"};
  for (size_t at = 0; at < keys.size();) {
    const size_t end = std::min(keys.find(' ', at), keys.size());
    overrides.push_back("parallel." + keys.substr(at, end - at));
    at = end + 1;
  }
  RunConfig config = parse_config("", "auto_overlap", overrides);
  validate(config);
  return resolved(std::move(config));
}

// Whatever a search chooses: only order and streams differ from a run without overlap.
TEST(AutoOverlapParity, ChangesNoBit) {
  const std::vector<std::string> layouts = {
      "ranks=4 shard=optimizer",
      "ranks=2 shard=parameters",
      "ranks=4 pipeline=4 schedule=1f1b",
      "ranks=4 pipeline=2 virtual_stages=2 schedule=interleaved shard=gradients",
      "ranks=2 tensor=2 sequence_parallel=true",
      "ranks=2 context=2 shard=parameters",
  };
  for (const std::string& layout : layouts) {
    SCOPED_TRACE(layout);
    RunConfig config = config_of(layout);
    const auto model = load_cost_model(config.overlap.cost, 8);
    const AutoOverlap found = auto_overlap(resolve_run(config, 50), *model, {.max_trials = 16});
    config.overlap = {.mode = "off"};
    expect_same_bits(run(found.run.config, 2), run(config, 2));
  }
}

}  // namespace
}  // namespace braid
