#include "tune/search_layouts.h"

#include <gmock/gmock.h>

#include <limits>
#include <set>

#include "base/errors.h"
#include "base/expect_error.h"
#include "plan/memory_needs.h"
#include "plan/run_spec.h"
#include "sim/analytic_model.h"
#include "support/thinned.h"
#include "tune/describe_search.h"
#include "tune/small_search.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Few enough layouts to simulate all of them.
const LayoutLimits kFew{.max_tensor = 2,
                        .max_context = 1,
                        .max_microbatch = 2,
                        .fixed = {"memory.recompute", "parallel.shard_replicas"}};

std::unique_ptr<CostModel> model_of(const std::string& cluster) {
  return make_analytic_model(parse_cluster(cluster));
}

TEST(SearchLayouts, FindsTheBestOfAll) {
  const RunConfig config = small_search_run(4);
  const auto model = model_of("h100x4");
  LayoutLimits limits = kFew;
  limits.max_microbatch = 1;
  limits.max_tensor = kSanitized ? 1 : 2;
  const LayoutSearch some =
      search_layouts(config, 0, *model, {.limits = limits, .num_simulated = 12});
  const LayoutSearch all =
      search_layouts(config, 0, *model, {.limits = limits, .num_simulated = 100'000});
  EXPECT_EQ(some.ranked.size(), 12u);
  EXPECT_GT(all.ranked.size(), 12u);
  EXPECT_EQ(some.ranked.front().step_ns, all.ranked.front().step_ns);
  EXPECT_EQ(all.counts.behind, 0);
  for (const LayoutSearch* const search : {&some, &all}) {
    const SearchCounts& counts = search->counts;
    EXPECT_EQ(counts.looked_at, counts.refused + counts.too_big + counts.behind + counts.simulated);
    EXPECT_EQ(counts.simulated, static_cast<int64_t>(search->ranked.size()));
    EXPECT_TRUE(std::ranges::is_sorted(search->ranked, {}, &RankedLayout::step_ns));
  }
}

TEST(SearchLayouts, TellsWhatItFindsAndKeepsItWhenStopped) {
  const auto model = model_of("h100x4");
  std::vector<int64_t> told;
  bool stop = false;
  const LayoutSearch search = search_layouts(small_search_run(4), 0, *model,
                                             {.limits = kFew,
                                              .on_found =
                                                  [&](const LayoutSearch& found) {
                                                    if (found.ranked.empty()) {
                                                      return;  // an estimate
                                                    }
                                                    told.push_back(found.ranked.front().step_ns);
                                                    EXPECT_FALSE(found.was_stopped);
                                                    stop = true;
                                                  },
                                              .stop_requested = [&] { return stop; }});
  EXPECT_EQ(told.size(), 1u);
  EXPECT_TRUE(search.was_stopped);
  EXPECT_GE(search.ranked.size(), 1u);
  EXPECT_LE(search.ranked.size(), 2u);
  EXPECT_EQ(search.ranked.front().step_ns, told.front());
  const SearchCounts& counts = search.counts;
  EXPECT_EQ(counts.looked_at, counts.refused + counts.too_big + counts.behind + counts.simulated);
  EXPECT_THAT(describe_search(search, small_search_run(4)), HasSubstr("\nstopped   before all"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                search_layouts(small_search_run(4), 0, *model,
                               {.limits = kFew, .stop_requested = [] { return true; }});
              }),
              HasSubstr("stopped before a layout was simulated"));
}

/// What a search tells of the run file's own layout, by estimate and as it is, and what it finds
/// in the end.
struct FirstAndLast {
  GivenLayout estimated;
  LayoutSearch first;
  LayoutSearch with_rows;  ///< the first that has any
  LayoutSearch last;

  FirstAndLast(const RunConfig& config, SearchOptions options) {
    const auto model = model_of("h100x4");
    options.on_found = [&, told = 0](const LayoutSearch& found) mutable {
      const bool is_estimate = told == 0 && found.given.refusal.empty();
      estimated = is_estimate ? found.given : estimated;
      with_rows = with_rows.ranked.empty() ? found : with_rows;
      first = told == (estimated.estimated_ns > 0 ? 1 : 0) && !is_estimate ? found : first;
      ++told;
    };
    last = search_layouts(config, 0, *model, options);
    const SearchCounts& counts = last.counts;
    EXPECT_EQ(counts.looked_at, counts.refused + counts.too_big + counts.behind + counts.simulated);
  }
};

/// The layout of the run file as `braid simulate` has it.
int64_t simulated_step_ns(const RunConfig& config) {
  return SimulatedRun(resolve_run(resolved(config), 0), *model_of("h100x4"), {},
                      PlannedRanks::kOnePerStage)
      .step_ns();
}

/// With no layout of the run file's own: what a search tells first.
LayoutSearch first_found(RunConfig config, SearchOptions options) {
  config.parallel.pipeline = 3;  // refused
  return FirstAndLast(config, std::move(options)).with_rows;
}

int64_t num_microbatches_of(const RunConfig& config, const Layout& layout) {
  return config.train.global_batch / (layout.data * layout.microbatch);
}

TEST(SearchLayouts, TheFirstLayoutsAreQuickToSimulate) {
  RunConfig config = small_search_run(4);
  // Gradients take longer between ranks than their few tokens to compute.
  config.model.width = 4096;
  config.model.heads = 32;
  config.train.sequence = 64;
  config.train.global_batch = 4;
  SearchOptions options{.limits = kFew, .num_simulated = 12};
  const LayoutSearch best_first = first_found(config, options);
  options.quick_passes = 1;
  const LayoutSearch quick_first = first_found(config, options);
  EXPECT_GT(num_microbatches_of(config, best_first.ranked.front().layout), 2);
  for (const RankedLayout& row : quick_first.ranked) {
    EXPECT_LE(num_microbatches_of(config, row.layout), 2) << "twice the one of four data ranks";
  }
}

TEST(SearchLayouts, TheRunFilesOwnLayoutComesFirst) {
  RunConfig config = small_search_run(4);
  config.parallel.pipeline = 2;
  config.parallel.shard = "optimizer";
  config.memory.recompute = "full";
  const FirstAndLast found(config,
                           {.limits = {.max_tensor = 2, .max_context = 1}, .num_simulated = 6});
  ASSERT_EQ(found.first.ranked.size(), 1u);
  EXPECT_TRUE(found.first.ranked[0].is_given);
  EXPECT_EQ(found.first.ranked[0].layout, found.first.given.layout);
  EXPECT_EQ(layout_name(found.first.given.layout), "pp2 dp2 shard=optimizer mb1 recompute=full");
  EXPECT_EQ(found.first.given.step_ns, simulated_step_ns(config));
  EXPECT_EQ(found.estimated.step_ns, 0);
  EXPECT_NEAR(found.estimated.estimated_ns, static_cast<double>(found.first.given.step_ns),
              0.2 * found.estimated.estimated_ns);
  EXPECT_TRUE(found.last.given.fits);
  EXPECT_EQ(found.last.ranked.size(), 6u);
  EXPECT_EQ(std::ranges::count(found.last.ranked, found.first.given.layout, &RankedLayout::layout),
            1)
      << "it is in the space, too, and simulated once";
  EXPECT_LT(found.last.ranked.front().step_ns, found.last.given.step_ns);
}

// Stages that the search would not make.
TEST(SearchLayouts, TheRunFilesOwnLayoutMayBeOutsideOfTheSpace) {
  RunConfig config = small_search_run(4);
  config.parallel.pipeline = 2;
  config.parallel.pipeline_layout = "Ettt|tL";
  const FirstAndLast found(config, {.limits = kFew, .num_simulated = 3});
  ASSERT_EQ(found.first.ranked.size(), 1u);
  EXPECT_EQ(found.first.given.step_ns, simulated_step_ns(config));
  EXPECT_EQ(found.first.ranked[0].config.parallel.pipeline_layout, "Ettt|tL");
  EXPECT_EQ(found.last.counts.looked_at,
            1 + search_layouts(small_search_run(4), 0, *model_of("h100x4"),
                               {.limits = kFew, .num_simulated = 1})
                    .counts.looked_at);
}

TEST(SearchLayouts, SaysWhatIsWrongWithTheRunFilesOwnLayout) {
  RunConfig config = small_search_run(4);
  config.parallel.pipeline = 3;
  const FirstAndLast refused(config, {.limits = kFew, .num_simulated = 2});
  EXPECT_TRUE(refused.first.ranked.empty());
  EXPECT_THAT(refused.first.given.refusal, HasSubstr("parallel.ranks = 4"));
  EXPECT_EQ(refused.last.ranked.size(), 2u);
  config = small_search_run(4);
  config.train.microbatch = 2;
  const int64_t needed =
      FirstAndLast(config, {.limits = kFew, .num_simulated = 1}).first.given.needed_bytes;
  const FirstAndLast planned(config,
                             {.limits = kFew, .memory_bytes = needed - 1, .num_simulated = 2});
  EXPECT_TRUE(planned.first.ranked.empty());
  EXPECT_FALSE(planned.last.given.fits);
  EXPECT_EQ(planned.last.given.needed_bytes, needed);
  EXPECT_GT(planned.last.given.step_ns, 0);
  EXPECT_GT(planned.last.ranked.size(), 0u);
  config.train.global_batch = 64;
  config.train.sequence = 16384;
  config.train.microbatch = 16;
  const FirstAndLast estimated(config,
                               {.limits = kFew, .memory_bytes = 2 * needed, .num_simulated = 2});
  EXPECT_EQ(estimated.last.given.step_ns, 0) << "far too big: it was not simulated";
  EXPECT_GT(estimated.last.given.needed_bytes, 2 * needed);
}

TEST(SearchLayouts, RecomputeThatIsLeftToBraidIsTheLeastThatFits) {
  RunConfig config = small_search_run(4);
  config.memory.recompute = "auto";
  const FirstAndLast found(config,
                           {.limits = {.max_tensor = 2, .max_context = 1}, .num_simulated = 1});
  EXPECT_EQ(found.first.given.layout.recompute, RecomputeChoice::kNone);
  EXPECT_TRUE(found.first.given.fits);
}

TEST(SearchLayouts, StepsAreThoseOfEveryRank) {
  const auto model = model_of("h100x16");
  RunConfig config = small_search_run(16);
  config.train.global_batch = 16;
  const LayoutSearch search = search_layouts(
      config, 0, *model,
      {.limits = {.max_microbatch = 1, .fixed = {"memory.recompute", "parallel.shard_replicas"}},
       .num_simulated = kSanitized ? 4 : 16});
  for (const RankedLayout& row : search.ranked) {
    const SimulatedRun run(resolve_run(row.config, 0), *model);
    // Tasks of the optimizer differ by the place in the tensor group, and nothing else does.
    EXPECT_NEAR(static_cast<double>(run.step_ns()), static_cast<double>(row.step_ns),
                0.01 * static_cast<double>(row.step_ns))
        << layout_name(row.layout);
    EXPECT_NEAR(run.mfu(), row.mfu, 0.01 * row.mfu);
  }
}

TEST(SearchLayouts, ThreadsMakeNoDifference) {
  const RunConfig config = small_search_run(4);
  const auto model = model_of("h100x4");
  SearchOptions options{.limits = kFew, .num_simulated = 12, .num_threads = 1};
  const LayoutSearch one = search_layouts(config, 0, *model, options);
  options.num_threads = 3;
  const LayoutSearch three = search_layouts(config, 0, *model, options);
  EXPECT_EQ(search_json(one, config, 12), search_json(three, config, 12));
}

// What context ranks exchange is never repeated: "attention" does what "norms" does.
TEST(SearchLayouts, LeavesOutPoliciesThatRepeatNoMoreThanOthers) {
  RunConfig config = small_search_run(4);
  config.parallel.context = 2;
  const auto model = model_of("h100x4");
  const LayoutSearch search = search_layouts(
      config, 0, *model,
      {.limits = {.max_tensor = 1,
                  .max_microbatch = 1,
                  .fixed = {"parallel.context", "parallel.context_method", "parallel.shard",
                            "parallel.shard_replicas", "parallel.schedule"}},
       .num_simulated = 1'000});
  std::set<RecomputeChoice> policies;
  for (const RankedLayout& row : search.ranked) {
    policies.insert(row.layout.recompute);
  }
  EXPECT_THAT(policies,
              ElementsAre(RecomputeChoice::kNone, RecomputeChoice::kNorms, RecomputeChoice::kFull));
  EXPECT_GT(search.counts.behind, 0);
}

TEST(SearchLayouts, ObeysTheMemoryLimit) {
  RunConfig config = small_search_run(4);
  const auto model = model_of("h100x4");
  SearchOptions options{.limits = kFew, .num_simulated = 12};
  const LayoutSearch all = search_layouts(config, 0, *model, options);
  EXPECT_EQ(all.memory_bytes, model->cluster().device.memory_bytes);
  int64_t least_bytes = std::numeric_limits<int64_t>::max();
  for (const RankedLayout& row : all.ranked) {
    least_bytes = std::min(least_bytes, row.needed_bytes);
  }
  options.memory_bytes = least_bytes;
  const LayoutSearch small = search_layouts(config, 0, *model, options);
  EXPECT_GT(small.counts.too_big, 0);
  for (const RankedLayout& row : small.ranked) {
    EXPECT_LE(row.needed_bytes, least_bytes) << layout_name(row.layout);
  }
  options.memory_bytes = 1 << 20;
  EXPECT_THAT(message_of<ConfigError>([&] { search_layouts(config, 0, *model, options); }),
              AllOf(HasSubstr("no layout of 4 ranks fits 1.00 MiB of memory"),
                    HasSubstr("comes nearest with about ")));
}

TEST(SearchLayouts, FixedKeysStay) {
  RunConfig config = small_search_run(4);
  config.parallel.pipeline = 2;
  config.memory.recompute = "full";
  const auto model = model_of("h100x4");
  LayoutLimits limits = kFew;
  limits.fixed.insert("parallel.pipeline");
  const LayoutSearch search =
      search_layouts(config, 0, *model, {.limits = limits, .num_simulated = 6});
  for (const RankedLayout& row : search.ranked) {
    EXPECT_EQ(row.config.parallel.pipeline, 2);
    EXPECT_EQ(row.config.memory.recompute, "full");
  }
}

TEST(SearchLayouts, OneDeviceHasMicrobatchAndRecompute) {
  RunConfig config = small_search_run(1);
  const auto gpu = model_of("h200");
  const LayoutSearch search = search_layouts(config, 0, *gpu, {.num_simulated = 100});
  EXPECT_EQ(search.ranked.size(), 16u);  // 1, 2, 4, 8 sequences; four policies
  EXPECT_EQ(search.ranked.front().layout.recompute, RecomputeChoice::kNone);
  config.train.dtype = "float32";
  const auto cpu = model_of("cpu");
  const LayoutSearch on_cpu = search_layouts(config, 0, *cpu, {.num_simulated = 100});
  EXPECT_EQ(on_cpu.memory_bytes, std::nullopt);
  EXPECT_EQ(on_cpu.ranked.size(), 16u);
}

TEST(SearchLayouts, SaysWhyThereIsNone) {
  RunConfig config = small_search_run(7);
  const auto model = model_of("h100x7");
  EXPECT_THAT(
      message_of<ConfigError>([&] { search_layouts(config, 0, *model); }),
      AllOf(HasSubstr("no layout of 7 ranks is allowed"), HasSubstr("train.global_batch = 8"),
            HasSubstr("set another train.global_batch or number of ranks")));
}

TEST(SearchLayouts, ManualOverlapIsSearchedToo) {
  RunConfig config = small_search_run(4);
  config.overlap.mode = "manual";
  config.overlap.overlap_p2p_comm = true;
  const auto model = model_of("h100x4");
  const LayoutSearch search =
      search_layouts(config, 0, *model, {.limits = kFew, .num_simulated = 6});
  for (const RankedLayout& row : search.ranked) {
    EXPECT_GT(row.layout.pipeline, 1);  // the key needs messages
  }
}

TEST(SearchLayouts, ReportsProgress) {
  const RunConfig config = small_search_run(1);
  const auto model = model_of("h100");
  std::vector<std::string> parts;
  search_layouts(config, 0, *model,
                 {.num_simulated = 9, .on_progress = [&](const SearchProgress& progress) {
                    EXPECT_LE(progress.done, progress.total);
                    if (parts.empty() || parts.back() != progress.part) {
                      parts.emplace_back(progress.part);
                    }
                  }});
  // The usual layouts, then all.
  EXPECT_THAT(parts, ::testing::ElementsAre("prices", "estimates", "simulated steps", "prices",
                                            "estimates", "simulated steps"));
}

}  // namespace
}  // namespace braid
