// Settings of any keys beside each other: a run is planned, and its ranks fit together, or one line
// refuses it, and what that line proposes is taken. One case is one seed.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "backends/stream_scratch.h"
#include "base/errors.h"
#include "config/fields.h"
#include "config/load.h"
#include "config/mistakes.h"
#include "config/validate.h"
#include "config/value.h"
#include "plan/most_streams.h"
#include "plan/run_plan.h"
#include "support/proposals.h"
#include "support/random_layout.h"
#include "support/thinned.h"

namespace braid {
namespace {

constexpr uint64_t kNumSeeds = thinned_count(200u, 10);

/// Adds to a random layout, which mostly is possible, random values of keys of the table.
class RandomSettings {
 public:
  explicit RandomSettings(uint64_t seed) : layout_(seed), random_(seed) {}

  Overrides draw() {
    Overrides overrides = applied({"overlap.mode=auto"}, layout_.draw());
    if (below(2) == 0) {
      overrides = applied(overrides, {"overlap.mode=manual"});
    }
    if (below(3) == 0) {
      overrides = applied(overrides, {"overlap.cost=h200x16"});
    }
    for (int64_t num_keys = below(6); num_keys > 0; --num_keys) {
      const Field& field = any_field();
      overrides = applied(overrides, {full_name(field) + "=" + value_of_key(field)});
    }
    return overrides;
  }

 private:
  int64_t below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }

  /// Keys of [overlap] are two in three: most rules are about them.
  const Field& any_field() {
    const bool is_overlap = below(3) != 0;
    for (;;) {
      const Field& field =
          config_fields()[static_cast<size_t>(below(static_cast<int64_t>(config_fields().size())))];
      if ((field.section == "overlap") == is_overlap && is_drawn(field)) {
        return field;
      }
    }
  }

  /// Keys that a model without experts refuses.
  static bool needs_experts(const Field& field) {
    const std::string_view key = field.name;
    return field.section == "moe" ||
           (field.section == "model" && (key.starts_with("expert") || key.starts_with("shared_") ||
                                         key.starts_with("router_")));
  }

  /// Paths, names of other programs and lists have no values that can be drawn.
  static bool is_drawn(const Field& field) {
    if (needs_experts(field)) {
      return false;
    }
    RunConfig config;
    const ValueRef value = field.value(config);
    const bool is_text = std::holds_alternative<std::string*>(value);
    const bool is_list = std::holds_alternative<std::vector<std::string>*>(value) ||
                         std::holds_alternative<std::vector<int64_t>*>(value);
    return !is_list && (!is_text || !field.limits.allowed.empty());
  }

  std::string value_of_key(const Field& field) {
    RunConfig config;
    const ValueRef value = field.value(config);
    if (!field.limits.allowed.empty()) {
      const auto names = static_cast<int64_t>(field.limits.allowed.size());
      return std::string(field.limits.allowed[static_cast<size_t>(below(names))]);
    }
    if (std::holds_alternative<bool*>(value) ||
        std::holds_alternative<std::optional<bool>*>(value)) {
      return below(2) == 0 ? "true" : "false";
    }
    const int64_t most = static_cast<int64_t>(std::min(field.limits.maximum, 8.0));
    return fmt::format("{}", below(most + 1));
  }

  RandomLayout layout_;
  std::mt19937_64 random_;
};

size_t num_streams(const RankPlan& rank) {
  StreamScratch streams;
  for (const Program& program : rank.programs) {
    for (const Stream& stream : program.streams) {
      streams.add(stream);
    }
  }
  return streams.num_streams();
}

/// Why a run with these overrides cannot be planned; empty if it can.
std::string refusal_of(const Overrides& overrides) {
  try {
    RunConfig config = parse_config("", "random", overrides);
    validate(config);
    config = resolved(std::move(config));
    const RunPlan plan = plan_run(resolve_run(config, 0));
    for (const RankPlan& rank : plan.ranks) {
      EXPECT_LE(num_streams(rank), most_streams(config));
    }
    return "";
  } catch (const ConfigError& error) {
    return mistakes_of(error).front();
  } catch (const InternalError& error) {
    ADD_FAILURE() << error.what();  // with the trace, which says the settings
    return "";
  }
}

class RandomSettingsTest : public testing::TestWithParam<uint64_t> {
 protected:
  static void TearDownTestSuite() {
    if (num_seeds_ == kNumSeeds) {  // not with a filter: a test that refuses all would be none
      EXPECT_GT(num_planned_, kNumSeeds / 8);
      EXPECT_LT(num_planned_, kNumSeeds * 3 / 4);
    }
  }

  static inline uint64_t num_seeds_ = 0;
  static inline uint64_t num_planned_ = 0;
};

TEST_P(RandomSettingsTest, ArePlannedOrRefusedWithAWayOut) {
  const Overrides overrides = RandomSettings(GetParam()).draw();
  SCOPED_TRACE(fmt::format("{}", fmt::join(overrides, " ")));
  const std::string refusal = refusal_of(overrides);
  ++num_seeds_;
  num_planned_ += refusal.empty() ? 1 : 0;
  EXPECT_EQ(refusal.find('\n'), std::string::npos);
  for (const Proposal& proposal : proposals_of(refusal)) {
    const Overrides changed = applied(overrides, proposal);
    const std::string next = refusal_of(changed);
    EXPECT_NE(next, refusal) << fmt::format("{}", fmt::join(proposal, " and "));
    EXPECT_EQ(refusals_in_a_row(changed, next, refusal_of), "")
        << fmt::format("{}", fmt::join(proposal, " and ")) << " was proposed by\n"
        << refusal;
  }
}

INSTANTIATE_TEST_SUITE_P(Random, RandomSettingsTest, testing::Range(uint64_t{0}, kNumSeeds),
                         [](const auto& seed) { return fmt::format("seed_{}", seed.param); });

}  // namespace
}  // namespace braid
