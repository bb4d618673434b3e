#include "verify/run_to_verify.h"

#include "base/expect_error.h"
#include "config/load.h"
#include "config/validate.h"

namespace braid {
namespace {

RunConfig config_with(std::vector<std::string> more) {
  std::vector<std::string> keys{
      "logging.run_folder=none", "model.experts=4",      "model.experts_per_token=2",
      "model.expert_ffn=16",     "model.width=32",       "model.layers=2",
      "model.heads=4",           "model.kv_heads=2",     "train.sequence=16",
      "train.microbatch=2",      "train.global_batch=8", "moe.expert_capacity=1.25"};
  keys.insert(keys.end(), more.begin(), more.end());
  const RunConfig config = parse_config("", "run_to_verify", keys);
  validate(config);
  return resolved(config);
}

// One rank has all tokens of a microbatch, and so other rows.
TEST(RunToVerify, RefusesACapacityOfExpertsWhereRanksShareTokens) {
  EXPECT_EQ(message_of<ConfigError>([] {
              run_to_verify(config_with({"parallel.ranks=4", "parallel.tensor=2",
                                         "parallel.sequence_parallel=true", "parallel.context=2"}),
                            50);
            }),
            "moe.expert_capacity = 1.25: 4 ranks that share the tokens of a microbatch "
            "(parallel.context = 2, parallel.tensor = 2) drop apart, and one rank drops other "
            "rows; set moe.expert_capacity = 0 to verify this layout");
  const RunSpec run = run_to_verify(
      config_with({"parallel.ranks=4", "parallel.pipeline=2", "parallel.expert=2"}), 50);
  EXPECT_EQ(run.model.router.expert_capacity, 1.25);
}

}  // namespace
}  // namespace braid
