#include "tune/auto_overlap.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "config/load.h"
#include "config/overlap_defaults.h"
#include "config/validate.h"
#include "ir/text.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"
#include "support/thinned.h"
#include "tune/overlap_axes.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Keys of [parallel], and others with their section, separated by blanks.
RunConfig config_of(const std::string& words) {
  std::vector<std::string> overrides = {
      "model.family=llama",  "model.layers=4",        "model.width=24",
      "model.heads=4",       "model.kv_heads=2",      "model.head_size=4",
      "model.ffn=24",        "model.vocabulary=50",   "train.microbatch=1",
      "train.sequence=16",   "train.global_batch=16", "logging.run_folder=none",
      "overlap.cost=h200x16"};
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find(' ', at), words.size());
    const std::string word = words.substr(at, end - at);
    overrides.push_back(word.find('.') < word.find('=') ? word : "parallel." + word);
    at = end + 1;
  }
  RunConfig config = parse_config("", "auto_overlap", overrides);
  validate(config);
  return resolved(std::move(config));
}

/// A machine on which these tiny steps wait for bytes: nothing costs time that does not depend on
/// what is computed or sent.
std::unique_ptr<CostModel> slow_links() {
  Cluster cluster = parse_cluster("h200x16");
  for (FabricSpec* const fabric : {&cluster.intra_node, &cluster.inter_node}) {
    *fabric = {.name = fabric->name,
               .bytes_per_s = fabric == &cluster.intra_node ? 1e9 : 3e8,
               .ring_step_ns = 50,
               .ring_step_middle_ns = 50,
               .ring_step_small_ns = 50,
               .tree_step_ns = 50,
               .tree_step_middle_ns = 50,
               .tree_step_small_ns = 50};
  }
  return make_analytic_model(std::move(cluster));
}

const std::vector<std::string> kLayouts = {
    "ranks=4 shard=none",
    "ranks=4 shard=optimizer",
    "ranks=2 shard=parameters",
    "ranks=4 pipeline=4 schedule=1f1b",
    "ranks=4 pipeline=2 virtual_stages=2 schedule=interleaved shard=gradients",
    "ranks=2 tensor=2 sequence_parallel=true memory.recompute=norms",
    "ranks=4 tensor=2 pipeline=2 schedule=1f1b train.global_batch=8",
    "ranks=2 context=2 shard=parameters",
};

std::vector<std::string> layouts() {
  return thinned(kLayouts, 3);
}

/// Manual settings at random: nothing, the defaults, and choices of some axes on top of either.
std::vector<OverlapConfig> random_settings(const RunConfig& config, int count) {
  std::mt19937 random(7);
  const std::vector<OverlapAxis> axes =
      overlap_axes(config, {.layers_of_job = 4, .num_microbatches = num_microbatches(config)});
  std::vector<OverlapConfig> settings = {manual_nothing(config.overlap), manual_defaults(config)};
  for (int i = 0; i < count; ++i) {
    OverlapConfig overlap = settings[random() % 2];
    for (const OverlapAxis& axis : axes) {
      if (random() % 2 == 0) {
        axis.choices[random() % axis.choices.size()](overlap);
      }
    }
    settings.push_back(std::move(overlap));
  }
  return settings;
}

AutoOverlap found_for(const RunConfig& config, const CostModel& model,
                      const AutoOverlapOptions& options = {}) {
  return auto_overlap(resolve_run(config, 0), model, options);
}

/// What a whole search finds for a layout, which several tests look at.
const AutoOverlap& found_on_slow_links(const std::string& layout) {
  static std::map<std::string, AutoOverlap> found;
  const auto at = found.find(layout);
  return at != found.end()
             ? at->second
             : found.emplace(layout, found_for(config_of(layout), *slow_links())).first->second;
}

TEST(AutoOverlap, IsNoSlowerThanManualSettings) {
  const auto model = slow_links();
  for (const std::string& layout : layouts()) {
    SCOPED_TRACE(layout);
    const RunConfig config = config_of(layout);
    const AutoOverlap& found = found_on_slow_links(layout);
    EXPECT_LE(found.chosen.step_ns, found.off.step_ns);
    EXPECT_LE(found.chosen.step_ns, found.defaults.step_ns);
    EXPECT_LT(found.chosen.step_ns, found.off.step_ns);
    EXPECT_TRUE(found.fits);
    OverlapTrials trials(resolve_run(config, 0), *model,
                         {.planned = PlannedRanks::kEveryPlace, .on_trial = {}});
    for (const OverlapTrial* const trial :
         trials.run(random_settings(config, kSanitized ? 4 : 12))) {
      if (trial->simulated) {
        // What no single change finds may be missed, by a little.
        EXPECT_LE(found.chosen.step_ns, trial->figures.step_ns + trial->figures.step_ns / 200)
            << describe_overlap_change(found.run.config.overlap, trial->overlap);
      }
    }
  }
}

TEST(AutoOverlap, PlansToTheStepThatItPromises) {
  const auto model = slow_links();
  for (const std::string& layout : layouts()) {
    SCOPED_TRACE(layout);
    const AutoOverlap& found = found_on_slow_links(layout);
    EXPECT_NE(found.run.config.overlap.mode, "auto");
    EXPECT_FALSE(found.run.config.overlap.may_change_rounding);
    validate(found.run.config);
    // Of every tensor, context and pipeline place, where the search takes one per stage.
    const SimulatedRun run(resolve_run(found.run.config, 0), *model);
    EXPECT_EQ(run.step_ns(), found.chosen.step_ns);
  }
}

TEST(AutoOverlap, IsTheSameOnAnyNumberOfThreads) {
  const auto model = slow_links();
  const RunConfig config = config_of(kLayouts[4]);
  const AutoOverlap one = found_for(config, *model, {.max_trials = 30, .num_threads = 1});
  const AutoOverlap four = found_for(config, *model, {.max_trials = 30, .num_threads = 4});
  EXPECT_EQ(one.run.config, four.run.config);
  EXPECT_EQ(describe(one), describe(four));
  ASSERT_EQ(one.trials.size(), four.trials.size());
  for (size_t i = 0; i < one.trials.size(); ++i) {
    EXPECT_EQ(one.trials[i].overlap, four.trials[i].overlap);
    EXPECT_EQ(one.trials[i].figures.step_ns, four.trials[i].figures.step_ns);
  }
}

TEST(AutoOverlap, StaysWithinTheMemory) {
  const auto model = slow_links();
  const RunConfig config = config_of("ranks=4 shard=parameters pipeline=2 schedule=1f1b");
  const AutoOverlap free = found_for(config, *model);
  int64_t least = free.chosen.needed_bytes;
  for (const OverlapTrial& trial : free.trials) {
    least = trial.simulated ? std::min(least, trial.figures.needed_bytes) : least;
  }
  ASSERT_LT(least, free.chosen.needed_bytes);
  const AutoOverlap tight =
      found_for(config, *model, {.memory_bytes = free.chosen.needed_bytes - 1});
  EXPECT_TRUE(tight.fits);
  EXPECT_LT(tight.chosen.needed_bytes, free.chosen.needed_bytes);
  // Either search ends where no single change gains: by another way it may end a little sooner.
  EXPECT_GT(static_cast<double>(tight.chosen.step_ns),
            0.99 * static_cast<double>(free.chosen.step_ns));
  const AutoOverlap none = found_for(config, *model, {.memory_bytes = 1});
  EXPECT_FALSE(none.fits);
  for (const OverlapTrial& trial : none.trials) {
    EXPECT_FALSE(trial.fits);
    EXPECT_THAT(trial.why_not, Not(IsEmpty()));
    EXPECT_TRUE(!trial.simulated || none.chosen.needed_bytes <= trial.figures.needed_bytes);
  }
  EXPECT_THAT(describe(none), HasSubstr(": no setting fits; this one needs the least\n"));
}

TEST(AutoOverlap, SearchesLongStepsWithFewerMicrobatches) {
  const auto model = slow_links();
  const RunConfig config = config_of("ranks=2 pipeline=2 schedule=1f1b");
  const AutoOverlap found = found_for(config, *model, {.max_tasks = 1});
  EXPECT_EQ(found.num_microbatches, 16);
  EXPECT_EQ(found.searched_microbatches, 4);
  EXPECT_GT(found.num_whole_trials, 2);
  EXPECT_EQ(found.run.config.train.global_batch, 16);
  EXPECT_LE(found.chosen.step_ns, found.off.step_ns);
  EXPECT_EQ(SimulatedRun(resolve_run(found.run.config, 0), *model).step_ns(), found.chosen.step_ns);
  EXPECT_THAT(describe(found),
              HasSubstr("searched with 4 microbatches instead of 16 (steps below); "));
}

TEST(AutoOverlap, SearchesManyLayersByAFewWhereMemoryDoesNotDecide) {
  const auto model = slow_links();
  const RunConfig config =
      config_of("ranks=2 tensor=2 sequence_parallel=true train.global_batch=4");
  const AutoOverlap found = found_for(config, *model, {.max_layers = 2});
  EXPECT_EQ(found.num_layers, 4);
  EXPECT_EQ(found.searched_layers, 2);
  EXPECT_EQ(found.run.config.model, config.model);
  EXPECT_LT(found.chosen.step_ns, found.off.step_ns);
  EXPECT_EQ(SimulatedRun(resolve_run(found.run.config, 0), *model).step_ns(), found.chosen.step_ns);
  EXPECT_THAT(describe(found), HasSubstr("searched with 2 layers instead of 4 (steps below); "));

  const AutoOverlap tight =
      found_for(config, *model, {.memory_bytes = found.off.needed_bytes + 1, .max_layers = 2});
  EXPECT_EQ(tight.searched_layers, 4);
  const RunConfig stages = config_of("ranks=2 pipeline=2 schedule=1f1b train.global_batch=4");
  EXPECT_EQ(found_for(stages, *model, {.max_layers = 2}).searched_layers, 4);
}

TEST(AutoOverlap, SearchesOfEachKindOfLayersItsShare) {
  const auto model = slow_links();
  RunConfig config = config_of("ranks=2 tensor=2 sequence_parallel=true train.global_batch=4");
  config.model.layers.reset();
  config.model.pattern = "(attention mlp)*4";
  const AutoOverlap found = found_for(config, *model, {.max_layers = 4});
  EXPECT_EQ(found.num_layers, 8);
  EXPECT_EQ(found.searched_layers, 4);
  EXPECT_EQ(found.run.config.model, config.model);
  EXPECT_LT(found.chosen.step_ns, found.off.step_ns);
  EXPECT_EQ(SimulatedRun(resolve_run(found.run.config, 0), *model).step_ns(), found.chosen.step_ns);
}

// The optimizer of eight layers is too short for the gathers of two units, that of 32 is not.
TEST(AutoOverlap, KeepsAsManyUnitsWholeAsTheOptimizerOfAllLayersHides) {
  const std::vector<std::string> overrides = {
      "model.preset=llama-8b",     "train.sequence=8192",  "train.microbatch=1",
      "train.global_batch=8",      "train.dtype=bfloat16", "parallel.ranks=8",
      "parallel.shard=parameters", "overlap.cost=h200x8",  "runtime.device=cuda",
      "logging.run_folder=none"};
  const RunConfig config = resolved(parse_config("", "auto_overlap", overrides));
  const auto model = make_analytic_model(parse_cluster("h200x8"));
  const AutoOverlap found = found_for(config, *model);
  EXPECT_LT(found.searched_layers, found.num_layers);
  EXPECT_EQ(found.run.config.overlap.param_gather_whole_units, 2);
}

TEST(AutoOverlap, KeepsWhatIsGivenBesideIt) {
  const auto model = slow_links();
  const std::string layout =
      "ranks=4 shard=optimizer train.global_batch=8 overlap.may_change_rounding=true ";
  for (const std::string engine : {"sm", "copy", "hidden"}) {
    SCOPED_TRACE(engine);
    const AutoOverlap found =
        found_for(config_of(layout + "overlap.comm_engine=" + engine), *model);
    EXPECT_EQ(found.run.config.overlap.comm_engine, engine);
    EXPECT_TRUE(found.run.config.overlap.overlap_grad_reduce) << "the rest is searched";
    for (const OverlapTrial& trial : found.trials) {
      EXPECT_TRUE(trial.overlap.comm_engine == engine || trial.overlap.mode == "off");
    }
  }
  const AutoOverlap scheduled = found_for(config_of(layout + "overlap.list_schedule=true"), *model);
  EXPECT_TRUE(scheduled.run.config.overlap.list_schedule);
}

TEST(AutoOverlap, CutsProductsOnlyIfRoundingMayChange) {
  const auto model = slow_links();
  const std::string layout =
      "ranks=2 tensor=2 sequence_parallel=true memory.recompute=norms train.sequence=512 "
      "train.global_batch=2 model.width=256 model.head_size=64 model.ffn=512";
  const AutoOverlap exact = found_for(config_of(layout), *model);
  for (const OverlapTrial& trial : exact.trials) {
    EXPECT_FALSE(trial.overlap.tp_comm_overlap && trial.overlap.tp_comm_overlap_ag);
    EXPECT_TRUE(trial.overlap.comm_engine == "auto" || trial.overlap.comm_engine == "sm");
    for (const std::string& site : trial.overlap.tp_comm_overlap_sites) {
      EXPECT_THAT(site, Not(HasSubstr("ring")));
      EXPECT_THAT(site, Not(HasSubstr("chunked")));
    }
  }
  const AutoOverlap free =
      found_for(config_of(layout + " overlap.may_change_rounding=true"), *model);
  EXPECT_LE(free.chosen.step_ns, exact.chosen.step_ns);
  EXPECT_TRUE(std::ranges::any_of(free.trials, [](const OverlapTrial& trial) {
    return trial.overlap.tp_comm_overlap && trial.overlap.tp_comm_overlap_ag;
  })) << "rings are tried where they are permitted";
  for (const char* const engine : {"copy", "hidden"}) {
    EXPECT_TRUE(std::ranges::any_of(
        free.trials,
        [engine](const OverlapTrial& trial) { return trial.overlap.comm_engine == engine; }))
        << engine << ": sums by copy engines are tried, too";
  }
  validate(free.run.config);
}

TEST(AutoOverlap, HalvesForwardsOnlyIfRoundingMayChange) {
  const auto model = slow_links();
  const std::string layout =
      "ranks=2 tensor=2 sequence_parallel=true train.microbatch=2 train.sequence=512 "
      "train.global_batch=2 model.width=256 model.head_size=64 model.ffn=512";
  const auto halves = [](const OverlapTrial& trial) {
    return trial.overlap.pair_forward_backward == "forward_halves";
  };
  EXPECT_TRUE(std::ranges::none_of(found_for(config_of(layout), *model).trials, halves));
  const AutoOverlap free =
      found_for(config_of(layout + " overlap.may_change_rounding=true"), *model);
  EXPECT_TRUE(std::ranges::any_of(free.trials, halves));
}

// A site that is written out with what it would be is no difference.
// Exchanges of Mixtral's rows between 2 GPUs take 3% of the step: products that leave 16 SMs to
// them all along lose more than hiding them gains, and with 8 they do not.
TEST(AutoOverlap, GivesShortExchangesFewerSms) {
  const auto found = [](std::vector<std::string> more) {
    std::vector<std::string> keys{
        "model.preset=mixtral-8x7b", "model.layers=3",      "data.tokenizer=ids:32000",
        "train.dtype=bfloat16",      "train.sequence=8192", "train.microbatch=2",
        "train.global_batch=8",      "parallel.ranks=2",    "parallel.expert=2",
        "parallel.shard=optimizer",  "moe.capacity=1.5",    "logging.run_folder=none",
        "runtime.device=cuda",       "overlap.cost=h200x2"};
    keys.insert(keys.end(), more.begin(), more.end());
    RunConfig config = parse_config("", "auto_overlap", keys);
    validate(config);
    return auto_overlap(resolve_run(resolved(std::move(config)), 32000),
                        *make_analytic_model(parse_cluster("h200x2")));
  };
  const AutoOverlap chosen = found({});
  EXPECT_THAT(chosen.run.config.overlap.comm_sms, ElementsAre("expert=8"));
  EXPECT_TRUE(chosen.run.config.overlap.overlap_moe_expert_parallel_comm);
  EXPECT_LT(chosen.chosen.step_ns, chosen.off.step_ns);
  const AutoOverlap given = found({"overlap.comm_sms=[\"expert=16\"]"});
  EXPECT_THAT(given.run.config.overlap.comm_sms, ElementsAre("expert=16"));
  EXPECT_LT(chosen.chosen.step_ns, given.chosen.step_ns);
}

TEST(AutoOverlap, ReasonsAreDifferences) {
  const auto model = make_analytic_model(parse_cluster("h200x8"));
  const AutoOverlap found = found_for(
      config_of("ranks=4 tensor=4 sequence_parallel=true model.layers=1 model.width=2048 "
                "model.heads=32 model.kv_heads=8 model.head_size=64 model.ffn=8192 "
                "model.vocabulary=128256 train.microbatch=2 train.sequence=512 "
                "train.global_batch=2 train.dtype=bfloat16 overlap.may_change_rounding=true"),
      *model);
  ASSERT_THAT(found.reasons, Not(IsEmpty()));
  EXPECT_THAT(found.reasons, Each(Not(HasSubstr(", ,"))));
}

TEST(AutoOverlap, SaysWhatItChoseAndWhy) {
  const AutoOverlap& found = found_on_slow_links("ranks=4 shard=optimizer");
  EXPECT_THAT(summarize(found), HasSubstr(" settings tried, step "));
  EXPECT_THAT(found.communication, Contains(HasSubstr("data: ")));
  EXPECT_THAT(describe(found), HasSubstr("auto     overlap_grad_reduce = true, "
                                         "overlap_grad_reduce_delayed_wgrad_layers = 1: "));
  EXPECT_GT(found.chosen.most_compute, found.off.most_compute);  // the same in a shorter step
  EXPECT_LE(found.chosen.most_compute, 1);
  EXPECT_THAT(describe(found), HasSubstr("auto     compute takes "));
  EXPECT_TRUE(found.run.config.overlap.overlap_grad_reduce);
}

TEST(AutoOverlap, IsWantedWhereACostModelIsNamed) {
  RunConfig config;
  EXPECT_FALSE(wants_auto_overlap(config));
  config.overlap.cost = "h200x8";
  EXPECT_TRUE(wants_auto_overlap(config));
  config.overlap.mode = "manual";
  EXPECT_FALSE(wants_auto_overlap(config));
}

TEST(OverlapAxes, SayOfListsWhatDiffers) {
  OverlapConfig before{.mode = "manual", .comm_engine = "sm", .tp_comm_overlap = true};
  OverlapConfig after = before;
  before.tp_comm_overlap_sites = {"fc1_fprop=none", "proj_fprop=ring", "qkv_fprop=ring"};
  after.tp_comm_overlap_sites = {"fc2_fprop=chunked:2", "proj_fprop=ring"};
  after.comm_engine = "hidden";
  EXPECT_EQ(describe_overlap_change(before, after),
            "comm_engine = \"hidden\" instead of \"sm\", fc1_fprop = ring instead of none, "
            "fc2_fprop = chunked:2 instead of chunked:4");
  after.tp_comm_overlap = false;
  EXPECT_EQ(describe_overlap_change(after, before),
            "comm_engine = \"sm\" instead of \"hidden\", tp_comm_overlap = true");
  EXPECT_EQ(describe_overlap_change(before, before), "");
}

// What `to_toml` says of mode = "auto" where products may be cut.
TEST(OverlapAxes, KeysInForceMakeTheSamePrograms) {
  for (const std::string layout :
       {"ranks=2 tensor=2 sequence_parallel=true memory.recompute=norms", "ranks=2 tensor=2"}) {
    SCOPED_TRACE(layout);
    RunConfig config = config_of(layout + " train.sequence=512 model.width=256 model.ffn=512");
    config.overlap.cost.clear();
    config.overlap.may_change_rounding = true;
    const RunPlan usual = plan_run(resolve_run(config, 0), {.one_rank_per_stage = true});
    config.overlap = overlap_in_force(config);
    config.overlap.mode = "manual";
    config.overlap.may_change_rounding = false;
    validate(config);
    const RunPlan manual = plan_run(resolve_run(config, 0), {.one_rank_per_stage = true});
    EXPECT_EQ(print_program(usual.ranks[0].programs[kTrainProgram]),
              print_program(manual.ranks[0].programs[kTrainProgram]));
  }
}

// What the search starts from is what auto does without one.
TEST(OverlapAxes, DefaultsAreThoseOfAuto) {
  for (const std::string& layout : layouts()) {
    SCOPED_TRACE(layout);
    RunConfig config = config_of(layout);
    config.overlap.cost.clear();
    const RunPlan usual = plan_run(resolve_run(config, 0), {.one_rank_per_stage = true});
    config.overlap = manual_defaults(config);
    validate(config);
    const RunPlan manual = plan_run(resolve_run(config, 0), {.one_rank_per_stage = true});
    ASSERT_EQ(usual.ranks.size(), manual.ranks.size());
    for (size_t i = 0; i < usual.ranks.size(); ++i) {
      EXPECT_EQ(print_program(usual.ranks[i].programs[kTrainProgram]),
                print_program(manual.ranks[i].programs[kTrainProgram]));
    }
  }
}

// Each choice of an axis, on top of the defaults, is one that validation takes.
TEST(OverlapAxes, ChoicesAreValid) {
  for (const std::string& layout : layouts()) {
    SCOPED_TRACE(layout);
    RunConfig config = config_of(layout);
    config.overlap.may_change_rounding = true;
    for (const OverlapAxis& axis : overlap_axes(config, {.layers_of_job = 4})) {
      SCOPED_TRACE(axis.name);
      for (const OverlapChange& choice : axis.choices) {
        RunConfig changed = config;
        changed.overlap = manual_defaults(config);
        choice(changed.overlap);
        EXPECT_NO_THROW(validate(changed));
      }
    }
  }
}

// NCCL, which moves rows in blocks and adds up gradients over hosts, may add in another order.
TEST(OverlapAxes, GiveExchangesFewerSmsWhereThatChangesNoBit) {
  const auto num_choices = [](const std::string& words, bool gpus) {
    const RunConfig config = config_of(
        "ranks=4 expert=4 model.experts=4 model.experts_per_token=2 model.expert_ffn=8 " + words);
    for (const OverlapAxis& axis : overlap_axes(config, {.copy_engines = gpus})) {
      if (axis.name == "experts") {
        return axis.choices.size();
      }
    }
    return size_t{0};
  };
  EXPECT_EQ(num_choices("moe.exchange=direct", true), 3u);
  EXPECT_EQ(num_choices("moe.exchange=direct", false), 2u);
  EXPECT_EQ(num_choices("moe.exchange=blocks", true), 2u);
  EXPECT_EQ(num_choices("moe.exchange=hosts moe.exchange_hosts=2", true), 2u);
  EXPECT_EQ(
      num_choices("moe.exchange=hosts moe.exchange_hosts=2 overlap.may_change_rounding=true", true),
      3u);
}

TEST(OverlapAxes, AreThoseOfTheLayout) {
  const auto names = [](const std::string& layout) {
    std::vector<std::string> list;
    for (const OverlapAxis& axis : overlap_axes(config_of(layout), {})) {
      list.push_back(axis.name);
    }
    return list;
  };
  EXPECT_THAT(names("ranks=1"), IsEmpty());
  EXPECT_THAT(names("ranks=2"), ElementsAre("gradients", "last reduction"));
  EXPECT_THAT(names("ranks=2 shard=optimizer"),
              ElementsAre("gradients", "last reduction", "gathers", "prefetch"));
  EXPECT_THAT(names("ranks=2 shard=parameters"),
              ElementsAre("gradients", "last reduction", "gathers", "prefetch", "whole units"));
  EXPECT_THAT(names("ranks=2 shard=parameters memory.recompute=full memory.recompute_layers=2"),
              Not(Contains("whole units")));
  EXPECT_THAT(names("ranks=2 pipeline=2 schedule=1f1b"),
              ElementsAre("messages", "delayed weight gradients", "head's weight gradients",
                          "cool-down", "gradients"));
  EXPECT_THAT(names("ranks=2 tensor=2"),
              ElementsAre("gradients", "tensor", "qkv", "fc1", "logits", "pairs"));
  EXPECT_THAT(names("ranks=4 tensor=2 pipeline=2 schedule=1f1b"), Contains("pairs"));
}

}  // namespace
}  // namespace braid
