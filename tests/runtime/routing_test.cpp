// Choices of routers that are recorded, replayed or drawn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "base/expect_error.h"
#include "base/temp_folder.h"
#include "config/load.h"
#include "runtime/rank_routing.h"
#include "support/engine_runs.h"

namespace braid {
namespace {

using Keys = std::vector<std::string>;
using ::testing::HasSubstr;

RunConfig config_of(const Keys& more) {
  Keys keys{"model.family=qwen3",  "model.pattern=attention+moe*2,attention+mlp,attention+moe",
            "model.width=32",      "model.heads=4",
            "model.kv_heads=4",    "model.ffn=24",
            "model.experts=8",     "model.experts_per_token=2",
            "model.expert_ffn=8",  "model.init_std=0.3",
            "model.mtp_depth=1",   "train.sequence=16",
            "train.microbatch=2",  "train.global_batch=8",
            "train.dtype=float32", "logging.run_folder=none",
            "moe.balance_loss=0"};  // that of a microbatch depends on its size
  keys.insert(keys.end(), more.begin(), more.end());
  RunConfig config = parse_config("", "routing", keys);
  validate(config);
  return resolved(config);
}

/// Losses of two steps with the weights of a seed.
std::vector<double> losses_of(const Keys& keys, uint64_t seed) {
  Engine engine(plan_run(resolve_run(config_of(keys), 50)), {.poison_step_arena = true});
  engine.write_state(initial_state(engine.plan().layout, engine.plan().run.model, seed));
  const RunSpec& run = engine.plan().run;
  const NoisySequences source(run.config.train.sequence);
  BatchLoader loader(source, {.shape = {.num_ranks = run.config.parallel.data,
                                        .num_microbatches = run.num_microbatches,
                                        .microbatch = run.microbatch_sequences}});
  std::vector<double> losses;
  for (int64_t step = 1; step <= 2; ++step) {
    const StepResult result = engine.train_step(*loader.next(), run.config.optimizer, 3e-3, step);
    losses.push_back(result.loss);
    losses.push_back(result.grad_norm);
  }
  return losses;
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

Keys with(Keys keys, const std::string& key) {
  keys.push_back(key);
  return keys;
}

/// Ranks that share tokens in every way: data, tensor and context ranks, stages, halves.
const std::vector<Keys>& layouts() {
  static const std::vector<Keys> list = {
      {"parallel.ranks=4", "parallel.expert=4"},
      {"parallel.ranks=4", "parallel.tensor=2", "parallel.sequence_parallel=true",
       "parallel.context=2", "parallel.expert=2", "parallel.expert_tensor=2"},
      {"parallel.ranks=4", "parallel.pipeline=2", "parallel.virtual_stages=2",
       "parallel.schedule=interleaved", "parallel.pipeline_layout=\"even\"", "train.microbatch=1"},
      {"parallel.ranks=2", "parallel.expert=2", "overlap.mode=manual",
       "overlap.overlap_moe_expert_parallel_comm=true", "overlap.pair_forward_backward=halves"}};
  return list;
}

class Routing : public ::testing::Test {
 protected:
  Routing() { recorded_ = losses_of({"moe.record=" + file_, "moe.record_steps=2"}, 5); }

  const TempFolder folder_;
  const std::string file_ = (folder_.path() / "routing").string();
  std::vector<double> recorded_;
};

TEST_F(Routing, ReplayHasTheBitsOfTheRunThatRecorded) {
  EXPECT_EQ(losses_of({}, 5), recorded_);
  EXPECT_EQ(losses_of({"moe.replay=" + file_}, 5), recorded_);
}

TEST_F(Routing, EveryLayoutRecordsTheSameFile) {
  for (size_t i = 0; i < layouts().size(); ++i) {
    const std::string file = fmt::format("{}{}", file_, i);
    losses_of(with(with(layouts()[i], "moe.record=" + file), "moe.record_steps=2"), 5);
    EXPECT_EQ(bytes_of(file), bytes_of(file_)) << i;
  }
}

// Other weights, whose routers would choose other experts.
TEST_F(Routing, EveryLayoutReplaysTheSameFile) {
  const std::vector<double> expected = losses_of({"moe.replay=" + file_}, 6);
  EXPECT_GT(std::abs(expected[1] - losses_of({}, 6)[1]), 1e-3);
  for (const Keys& layout : layouts()) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const std::vector<double> losses = losses_of(with(layout, "moe.replay=" + file_), 6);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(losses[i], expected[i], 2e-5 * expected[i]);  // f32 sums in other orders
    }
  }
}

TEST_F(Routing, StepsBehindTheFileBeginAgain) {
  const RunSpec run = resolve_run(config_of({}), 50);
  const RecordedRouting routing(file_, routing_shape(run));
  EXPECT_EQ(routing.num_steps(), 2);
  const TokenRun tokens{.sample = 3, .position = 5, .count = 4};
  const auto read = [&](int64_t step) {
    std::vector<int32_t> experts(8);
    routing.read(step, 1, tokens, experts);
    return experts;
  };
  EXPECT_EQ(read(3), read(1));
  EXPECT_EQ(read(4), read(2));
}

TEST_F(Routing, DamagedFilesAreOneClearLine) {
  const std::string whole = bytes_of(file_);
  const RunSpec run = resolve_run(config_of({}), 50);
  const RoutingShape shape = routing_shape(run);
  const auto error_of = [&](const std::string& bytes) {
    write_bytes(file_, bytes);
    return message_of<DataError>([&] {
      std::vector<int32_t> experts(static_cast<size_t>(shape.sequence * shape.per_token));
      RecordedRouting(file_, shape).read(1, 0, {.count = shape.sequence}, experts);
    });
  };
  EXPECT_THAT(error_of(""),
              HasSubstr("has 0 bytes; it must be a file that moe.record has written"));
  EXPECT_THAT(error_of(std::string(1000, 'x')), HasSubstr("has no header"));
  EXPECT_THAT(error_of("{" + std::string(1000, ' ')), HasSubstr("routing"));
  EXPECT_THAT(error_of("{}" + std::string(1000, ' ')), HasSubstr("its format is not"));
  EXPECT_THAT(error_of(whole.substr(0, whole.size() - 2)), HasSubstr("bytes of steps"));
  EXPECT_THAT(error_of(whole.substr(0, kRoutingHeaderBytes)), HasSubstr("has 0 bytes of steps"));
  const auto with_expert = [&](char low) {
    std::string bytes = whole;
    bytes[kRoutingHeaderBytes + 6] = low;
    return bytes;
  };
  EXPECT_THAT(error_of(with_expert(0)),
              HasSubstr("step 1, router 0, sequence 0, token 1: was not recorded"));
  EXPECT_THAT(error_of(with_expert(9)), HasSubstr("token 1: has expert 8 of 8"));
  EXPECT_THAT(error_of(with_expert(whole[kRoutingHeaderBytes + 4])), HasSubstr(" twice"));
}

TEST_F(Routing, FilesOfOtherRunsAndExistingOnesAreRefused) {
  const auto error_of = [&](const std::string& key) {
    return message_of<ConfigError>([&] { losses_of({"moe.replay=" + file_, key}, 5); });
  };
  EXPECT_THAT(error_of("model.experts=6"),
              HasSubstr("recorded with model.experts = 8, but this run has 6"));
  EXPECT_THAT(error_of("train.global_batch=4"), HasSubstr("train.global_batch = 8"));
  EXPECT_THAT(error_of("train.sequence=8"), HasSubstr("train.sequence = 16"));
  EXPECT_THAT(error_of("model.mtp_depth=0"), HasSubstr("layers with experts = 4, but this run"));
  EXPECT_THAT(message_of<DataError>([&] { losses_of({"moe.record=" + file_}, 5); }),
              HasSubstr("it exists; remove it, or choose another name"));
}

/// Rows of each expert of a router, of so many tokens.
std::vector<int64_t> rows_of(const RoutingSource& source, int64_t router, int64_t tokens) {
  std::vector<int32_t> experts(static_cast<size_t>(tokens) * 2);
  source.read(1, router, {.sample = 1, .count = tokens}, experts);
  std::vector<int64_t> rows(8);
  for (size_t i = 0; i < experts.size(); i += 2) {
    EXPECT_NE(experts[i], experts[i + 1]);
    ++rows[static_cast<size_t>(experts[i])];
    ++rows[static_cast<size_t>(experts[i + 1])];
  }
  return rows;
}

TEST(ForceSkew, DrawsLoadsThatTheConcentrationSays) {
  const auto most = [](double concentration) {
    const RunSpec run =
        resolve_run(config_of({fmt::format("moe.force_skew={}", concentration)}), 50);
    const auto source = make_routing_source(run);
    int64_t sum = 0;
    for (int64_t router = 0; router < 4; ++router) {
      sum += std::ranges::max(rows_of(*source, router, 1000));
    }
    return static_cast<double>(sum) / 1000;  // beside equal loads: of 250 rows, 4 routers
  };
  EXPECT_LT(most(1e4), 1.2);
  EXPECT_GT(most(1), 1.8);
  EXPECT_GT(most(0.1), 3);
}

TEST(ForceSkew, AFavouredRunOfExpertsIsTheBusiest) {
  const RunSpec run = resolve_run(config_of({"moe.force_skew=0.5"}), 50);
  for (const int64_t favoured : {0, 2}) {
    const auto source = make_routing_source(run, FavouredExperts{.index = favoured, .runs = 4});
    for (int64_t router = 0; router < 4; ++router) {
      const std::vector<int64_t> rows = rows_of(*source, router, 1000);
      std::vector<int64_t> runs;
      for (size_t e = 0; e < rows.size(); e += 2) {
        runs.push_back(rows[e] + rows[e + 1]);
      }
      EXPECT_EQ(std::ranges::max_element(runs) - runs.begin(), favoured);
    }
  }
}

TEST(ForceSkew, EveryLayoutHasTheSameLosses) {
  const std::vector<double> expected = losses_of({"moe.force_skew=0.5"}, 5);
  EXPECT_GT(std::abs(expected[1] - losses_of({}, 5)[1]), 1e-3);
  const std::vector<double> losses = losses_of(with(layouts()[1], "moe.force_skew=0.5"), 5);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 2e-5 * expected[i]);
  }
}

}  // namespace
}  // namespace braid
