#include "parallel/pipeline_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/expect_error.h"
#include "parallel/layout_string.h"

namespace braid {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string layout_of(const PipelineLayoutOptions& options) {
  return layout_text(make_pipeline_layout(options));
}

std::string refusal(const PipelineLayoutOptions& options) {
  return message_of<ConfigError>([&] { make_pipeline_layout(options); });
}

TEST(PipelineLayout, OneStageHasEverything) {
  EXPECT_EQ(make_pipeline_layout({.layers = 7}), (std::vector<StageSlice>{{0, 7, true, true}}));
}

TEST(PipelineLayout, Even) {
  EXPECT_EQ(
      make_pipeline_layout({.layers = 6, .schedule = {.num_ranks = 3}, .layout = "even"}),
      (std::vector<StageSlice>{{0, 2, true, false}, {2, 2, false, false}, {4, 2, false, true}}));
  EXPECT_EQ(
      layout_of(
          {.layers = 12, .schedule = {.num_ranks = 2, .virtual_stages = 2}, .layout = "even"}),
      "Et*3|t*3|t*3|t*3L");
  EXPECT_EQ(
      layout_of(
          {.layers = 5, .schedule = {.num_ranks = 2}, .layout = "even", .account_for_loss = true}),
      "Et*3|ttL");
}

TEST(PipelineLayout, EmbeddingAndLossMayCountAsLayers) {
  EXPECT_EQ(layout_of({.layers = 11, .schedule = {.num_ranks = 4}, .account_for_embedding = true}),
            "Ett|t*3|t*3|t*3L");
  EXPECT_EQ(layout_of({.layers = 11, .schedule = {.num_ranks = 4}, .account_for_loss = true}),
            "Et*3|t*3|t*3|ttL");
  EXPECT_EQ(layout_of({.layers = 14,
                       .schedule = {.num_ranks = 4, .virtual_stages = 2},
                       .account_for_embedding = true,
                       .account_for_loss = true}),
            "Et|tt|tt|tt|tt|tt|tt|tL");
  EXPECT_EQ(layout_of({.layers = 2,
                       .schedule = {.num_ranks = 4},
                       .account_for_embedding = true,
                       .account_for_loss = true}),
            "E|t|t|L");
}

TEST(PipelineLayout, FirstAndLastRankMayHaveOtherNumbers) {
  EXPECT_EQ(layout_of({.layers = 10, .schedule = {.num_ranks = 4}, .first_stage_layers = 1}),
            "Et|t*3|t*3|t*3L");
  EXPECT_EQ(layout_of({.layers = 10, .schedule = {.num_ranks = 4}, .last_stage_layers = 1}),
            "Et*3|t*3|t*3|tL");
  EXPECT_EQ(layout_of({.layers = 9,
                       .schedule = {.num_ranks = 4},
                       .first_stage_layers = 1,
                       .last_stage_layers = 2}),
            "Et|t*3|t*3|ttL");
  EXPECT_EQ(layout_of({.layers = 5,
                       .schedule = {.num_ranks = 2},
                       .first_stage_layers = 3,
                       .last_stage_layers = 2}),
            "Et*3|ttL");
  EXPECT_EQ(layout_of({.layers = 5, .first_stage_layers = 5}), "Et*5L");
}

TEST(PipelineLayout, FirstAndLastAreRanksWithAllTheirVirtualStages) {
  PipelineLayoutOptions options{.layers = 14,
                                .schedule = {.num_ranks = 3, .virtual_stages = 2},
                                .first_stage_layers = 2,
                                .last_stage_layers = 4};
  EXPECT_EQ(layout_of(options), "Et|t*4|tt|t|t*4|ttL");
  options.schedule.kind = ScheduleKind::kZbV;
  EXPECT_EQ(layout_of(options), "Et|t*4|tt|tt|t*4|tL");
}

TEST(PipelineLayout, String) {
  EXPECT_EQ(
      make_pipeline_layout({.layers = 5,
                            .schedule = {.num_ranks = 2, .virtual_stages = 2},
                            .layout = "E|t*2|ttt|L"}),
      (std::vector<StageSlice>{
          {0, 0, true, false}, {0, 2, false, false}, {2, 3, false, false}, {5, 0, false, true}}));
}

TEST(PipelineLayout, StringOfManyStages) {
  const auto stages = make_pipeline_layout({.layers = 61,
                                            .schedule = {.num_ranks = 16, .virtual_stages = 2},
                                            .layout = "Et*3|(tt|)*28t|t|L"});
  ASSERT_EQ(stages.size(), 32u);
  EXPECT_EQ(stages[28], (StageSlice{57, 2, false, false}));
  EXPECT_EQ(stages[30], (StageSlice{60, 1, false, false}));
  EXPECT_EQ(stages[31], (StageSlice{61, 0, false, true}));
}

TEST(PipelineLayout, CommasAndBlanksMeanNothing) {
  EXPECT_EQ(
      layout_of(
          {.layers = 8, .schedule = {.num_ranks = 4}, .layout = "E,t t | (t, t |)*2 t*2 , L"}),
      "Ett|tt|tt|ttL");
}

TEST(LayoutString, WritesOutRepetitions) {
  using Stages = std::vector<std::string>;
  EXPECT_EQ(parse_layout_string("Et*3|tL"), (Stages{"Ettt", "tL"}));
  EXPECT_EQ(parse_layout_string("(t|)*2"), (Stages{"t", "t", ""}));
  EXPECT_EQ(parse_layout_string("(t*2|)*2L"), (Stages{"tt", "tt", "L"}));
  EXPECT_EQ(parse_layout_string("E(tt)*3"), (Stages{"Etttttt"}));
  EXPECT_EQ(parse_layout_string("E()*3t"), (Stages{"Et"}));
  EXPECT_EQ(parse_layout_string(""), (Stages{""}));
}

TEST(PipelineLayout, RefusesStringsThatAreNone) {
  const auto why = [](const std::string& layout) {
    const std::string message =
        refusal({.layers = 4, .schedule = {.num_ranks = 2, .virtual_stages = 1}, .layout = layout});
    EXPECT_THAT(message, HasSubstr("parallel.pipeline_layout = \""));
    return message.substr(message.find("\": ") + 3);
  };
  EXPECT_EQ(why("Ett|ttmL"),
            "m (multi-token prediction): its layers are always with L and have no letter");
  EXPECT_EQ(why("Ett|xtL"),
            "\"x\" is not one of E (embedding), t (layer), L (head and loss), | (next stage)");
  EXPECT_EQ(why("Ett|(ttL"), "\"(\" without \")\"");
  EXPECT_EQ(why("Ett|tt)*2L"), "\")\" without \"(\"");
  EXPECT_EQ(why("E(t(t)*2)*2|L"), "a group inside a group");
  EXPECT_EQ(why("E(t)|tttL"), "a group needs \"*\" and a number behind it");
  for (const char* text : {"Et*|tL", "Et*0|tL", "Et*-1|L", "Et*x|L", "Et*99999999999999999999|L"}) {
    EXPECT_EQ(why(text), "\"*\" needs a number from 1 to 100000 behind it");
  }
  EXPECT_EQ(why("*2"),
            "\"*\" is not one of E (embedding), t (layer), L (head and loss), | (next "
            "stage)");
  EXPECT_EQ(why("Et*60000|t*60000L"), "more than 100000 letters");
  EXPECT_EQ(why("Ett|*2ttL"), "\"|\" cannot be repeated");
  EXPECT_EQ(why("Ett||ttL"),
            "3 stages, not 2 stages (parallel.pipeline = 2 * parallel.virtual_stages = 1); set "
            "parallel.pipeline_layout = \"balanced\"");
  EXPECT_EQ(why("EttttL|"),
            "the embedding must be in the first stage and the head in the last one; other stages "
            "may be empty; the nearest is \"Et*4|L\"");
  EXPECT_THAT(why("|EttttL"), HasSubstr("the nearest is \"E|t*4L\""));
  EXPECT_EQ(why("Ett|tttL"), "5 layers, but model.layers = 4");
  EXPECT_EQ(why("tEt|ttL"), "E (embedding) must come first, and once");
  EXPECT_EQ(why("Ett|EttL"), "E (embedding) must come first, and once");
  EXPECT_EQ(why("Ett|tLt"), "L (head and loss) must come last, and once");
  EXPECT_EQ(why("EttL|ttL"), "L (head and loss) must come last, and once");
}

// Other schedules have one or two virtual stages, whatever the layout.
TEST(PipelineLayout, NamesVirtualStagesThatTheScheduleCanHave) {
  const auto why = [](const std::string& layout, const ScheduleOptions& schedule) {
    return refusal({.layers = 6, .schedule = schedule, .layout = layout});
  };
  ScheduleOptions schedule{.kind = ScheduleKind::kInterleaved, .num_ranks = 2, .virtual_stages = 2};
  EXPECT_THAT(why("Et|t|t|t|t|tL", schedule),
              EndsWith("set parallel.pipeline_layout = \"balanced\", or parallel.virtual_stages = "
                       "3"));
  EXPECT_THAT(why("Et*3|t*3L", schedule), EndsWith("set parallel.pipeline_layout = \"balanced\""));
  EXPECT_THAT(why("Et*3|t*2|tL", schedule),
              EndsWith("set parallel.pipeline_layout = \"balanced\""));
  schedule = {.num_ranks = 2};
  EXPECT_THAT(why("Et|t|t|t|t|tL", schedule),
              EndsWith("set parallel.pipeline_layout = \"balanced\""));
}

TEST(PipelineLayout, StagesInTheMiddleMayBeEmpty) {
  const std::vector<StageSlice> stages = make_pipeline_layout(
      {.layers = 4, .schedule = {.num_ranks = 4, .virtual_stages = 1}, .layout = "Ettt||t|L"});
  ASSERT_EQ(stages.size(), 4u);
  EXPECT_EQ(
      stages[1],
      (StageSlice{.first_layer = 3, .num_layers = 0, .has_embedding = false, .has_head = false}));
  EXPECT_EQ(layout_text(stages), "Et*3||t|L");
}

TEST(PipelineLayout, RefusesLayersThatDoNotDivide) {
  EXPECT_EQ(refusal({.layers = 22, .schedule = {.num_ranks = 4}, .layout = "even"}),
            "model.layers = 22: the layers do not divide over 4 stages (parallel.pipeline = 4 * "
            "parallel.virtual_stages = 1); the nearest is parallel.pipeline = 2, or set "
            "parallel.pipeline_layout = \"balanced\"");
  EXPECT_EQ(refusal({.layers = 12, .schedule = {.num_ranks = 4}, .account_for_embedding = true}),
            "model.layers = 12 + 1 for the embedding: 13 layers do not divide over 4 stages "
            "(parallel.pipeline = 4 * parallel.virtual_stages = 1); the nearest is "
            "parallel.pipeline = 1, or set parallel.pipeline_layout = \"balanced\" and "
            "parallel.account_for_embedding = false");
  // No number of ranks fits five virtual stages of 4 layers, and nothing balances them.
  EXPECT_EQ(
      refusal({.layers = 2, .schedule = {.num_ranks = 2, .virtual_stages = 5}, .layout = "even"}),
      "model.layers = 2: the layers do not divide over 10 stages (parallel.pipeline = 2 * "
      "parallel.virtual_stages = 5)");
}

TEST(PipelineLayout, Balanced) {
  const PartCosts costs{.kinds = {{.forward = 10, .dgrad = 10, .wgrad = 10, .activations = 1}},
                        .kind_of_layer = {},
                        .embedding = {},
                        .head = {.forward = 20, .dgrad = 20, .wgrad = 20}};
  PipelineLayoutOptions options{.layers = 10,
                                .schedule = {.num_ranks = 3, .num_microbatches = 6},
                                .costs = costs,
                                .layout = "balanced"};
  EXPECT_EQ(layout_of(options), "Et*4|t*4|ttL");
  options.layout.clear();  // the default
  EXPECT_EQ(layout_of(options), "Et*4|t*4|ttL");
  options.layers = 1;
  EXPECT_EQ(layout_of(options), "E|t|L");
  options.schedule.num_ranks = 4;
  EXPECT_EQ(refusal(options),
            "model.layers = 1: too few for 4 stages (parallel.pipeline = 4 * "
            "parallel.virtual_stages = 1), since each stage except the first and the last needs "
            "one; the largest is parallel.pipeline = 3");
  options.schedule = {.kind = ScheduleKind::kInterleaved, .virtual_stages = 4};
  EXPECT_EQ(refusal(options),
            "model.layers = 1: too few for 4 stages (parallel.pipeline = 1 * "
            "parallel.virtual_stages = 4), since each stage except the first and the last needs "
            "one; the largest is parallel.virtual_stages = 3 with parallel.pipeline = 1");
}

TEST(PipelineLayout, RefusesNumbersThatDoNotFit) {
  EXPECT_EQ(refusal({.layers = 12,
                     .schedule = {.num_ranks = 2, .virtual_stages = 2},
                     .first_stage_layers = 3}),
            "parallel.first_stage_layers = 3: the layers do not divide over "
            "parallel.virtual_stages = 2 of the rank; the nearest are 2 and 4");
  EXPECT_THAT(refusal({.layers = 12,
                       .schedule = {.num_ranks = 2, .virtual_stages = 2},
                       .last_stage_layers = 1}),
              HasSubstr("parallel.last_stage_layers = 1: the layers do not divide over "
                        "parallel.virtual_stages = 2 of the rank; the nearest is 2"));
  EXPECT_EQ(refusal({.layers = 12, .schedule = {.num_ranks = 4}, .first_stage_layers = 2}),
            "model.layers = 12 less parallel.first_stage_layers = 2 and "
            "parallel.last_stage_layers = 0: the other 10 do not divide over the other 3 stages; "
            "the nearest is parallel.pipeline = 3, or set parallel.pipeline_layout = "
            "\"balanced\" and parallel.first_stage_layers = 0");
  EXPECT_THAT(refusal({.layers = 12, .schedule = {.num_ranks = 2}, .first_stage_layers = 13}),
              HasSubstr("parallel.first_stage_layers = 13: must be 1 to model.layers = 12"));
  EXPECT_THAT(refusal({.layers = 12, .schedule = {.num_ranks = 2}, .last_stage_layers = -1}),
              HasSubstr("parallel.last_stage_layers = -1: must be 1 to model.layers = 12"));
  // Layers are left over although all stages have theirs, and the other way round.
  EXPECT_THAT(refusal({.layers = 12,
                       .schedule = {.num_ranks = 2},
                       .first_stage_layers = 4,
                       .last_stage_layers = 4}),
              HasSubstr("the other 4 do not divide over the other 0 stages"));
  EXPECT_THAT(refusal({.layers = 12,
                       .schedule = {.num_ranks = 3},
                       .first_stage_layers = 4,
                       .last_stage_layers = 8}),
              HasSubstr("the other 0 do not divide over the other 1 stages"));
  EXPECT_EQ(refusal({.layers = 12, .first_stage_layers = 12, .last_stage_layers = 6}),
            "parallel.last_stage_layers = 6: with parallel.pipeline = 1, the only rank holds all "
            "12 layers; remove the key");
}

TEST(PipelineLayout, RefusesTwoWaysAtOnce) {
  EXPECT_EQ(
      refusal({.layers = 4,
               .schedule = {.num_ranks = 2},
               .layout = "Ett|ttL",
               .first_stage_layers = 2}),
      "parallel.pipeline_layout = \"Ett|ttL\", parallel.first_stage_layers = 2, "
      "parallel.last_stage_layers = 0, parallel.account_for_embedding = false, "
      "parallel.account_for_loss = false: these keys exclude each other; give only one kind of "
      "them, or set parallel.pipeline_layout = \"balanced\" and parallel.first_stage_layers = 0");
  EXPECT_THAT(refusal({.layers = 4, .last_stage_layers = 2, .account_for_loss = true}),
              HasSubstr("exclude each other"));
  EXPECT_THAT(refusal({.layers = 4, .layout = "Et*4L", .account_for_embedding = true}),
              HasSubstr("exclude each other"));
}

TEST(PipelineLayout, TextIsReadBack) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 6);
    const int stages = 1 + static_cast<int>(random() % 3);
    PipelineLayoutOptions options{.layers = 0,
                                  .schedule = {.num_ranks = ranks, .virtual_stages = stages}};
    for (int stage = 0; stage < ranks * stages; ++stage) {
      const auto layers = static_cast<int64_t>(random() % 5);
      options.layout += stage == 0 ? "E" : "|";
      options.layout += std::string(static_cast<size_t>(layers), 't');
      options.layers += layers;
    }
    options.layout += "L";
    if (options.layers == 0) {
      continue;
    }
    const auto slices = make_pipeline_layout(options);
    options.layout = layout_text(slices);
    ASSERT_EQ(make_pipeline_layout(options), slices) << options.layout;
  }
}

/// The number of ranks that a refusal names, if it does.
std::optional<int> nearest_ranks(const std::string& message) {
  const std::string nearest = "the nearest is parallel.pipeline = ";
  const size_t at = message.find(nearest);
  return at == std::string::npos ? std::nullopt
                                 : std::optional(std::stoi(message.substr(at + nearest.size())));
}

TEST(PipelineLayout, RanksThatARefusalOfNumbersNamesAreAccepted) {
  int num_named = 0;
  for (int64_t layers = 1; layers <= 12; ++layers) {
    for (int ranks = 2; ranks <= 5; ++ranks) {
      for (const auto& [first, last] : {std::pair{2, 0}, {0, 3}, {2, 1}, {1, 1}}) {
        PipelineLayoutOptions options{.layers = layers,
                                      .schedule = {.num_ranks = ranks},
                                      .first_stage_layers = first,
                                      .last_stage_layers = last};
        try {
          make_pipeline_layout(options);
        } catch (const ConfigError& error) {
          if (const auto nearest = nearest_ranks(error.what())) {
            options.schedule.num_ranks = *nearest;
            EXPECT_NO_THROW(make_pipeline_layout(options)) << error.what();
            ++num_named;
          }
        }
      }
    }
  }
  EXPECT_GT(num_named, 50);
}

TEST(PipelineLayout, WhatARefusalNamesIsAccepted) {
  for (int64_t layers = 1; layers <= 40; ++layers) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      PipelineLayoutOptions options{
          .layers = layers, .schedule = {.num_ranks = ranks}, .layout = "even"};
      try {
        make_pipeline_layout(options);
      } catch (const ConfigError& error) {
        const std::string message = error.what();
        if (message.find("parallel.pipeline_layout = \"balanced\"") != std::string::npos) {
          options.layout = "balanced";
          make_pipeline_layout(options);
        } else {
          ASSERT_LT(layers, ranks - 2);
        }
        ASSERT_TRUE(nearest_ranks(message).has_value());
        options.layout = "even";
        options.schedule.num_ranks = *nearest_ranks(message);
        make_pipeline_layout(options);
      }
    }
  }
}

}  // namespace
}  // namespace braid
