#include "train/gather_tallies.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"

namespace braid {
namespace {

TEST(GatherTallies, PassBetweenProcesses) {
  const StepTallies sent{
      .tallies = {{.place = {.kind = TallyKind::kFp8Losses, .site = "layers.0.a", .factor = "dy"},
                   .values = {3, int64_t{1} << 50}},
                  {.place = {.kind = TallyKind::kExpertRows, .site = "layers.1.b"}, .values = {}}},
      .losses = {{.site = "layers.0.c", .balance = 1.0 / 3, .z = NAN}}};
  const StepTallies got = tallies_of(tally_bytes(sent));
  ASSERT_EQ(got.tallies.size(), 2u);
  EXPECT_EQ(got.tallies[0].place.kind, TallyKind::kFp8Losses);
  EXPECT_EQ(got.tallies[0].place.site, "layers.0.a");
  EXPECT_EQ(got.tallies[0].place.factor, "dy");
  EXPECT_EQ(got.tallies[0].values, sent.tallies[0].values);
  EXPECT_EQ(got.tallies[1].place.kind, TallyKind::kExpertRows);
  EXPECT_TRUE(got.tallies[1].values.empty());
  ASSERT_EQ(got.losses.size(), 1u);
  EXPECT_EQ(got.losses[0].site, "layers.0.c");
  EXPECT_EQ(got.losses[0].balance, 1.0 / 3);
  EXPECT_TRUE(std::isnan(got.losses[0].z));
  EXPECT_TRUE(tallies_of(tally_bytes({})).tallies.empty());
}

TEST(GatherTallies, OtherBytesAreRefused) {
  for (const char* const bytes :
       {"", "[]", "{\"tallies\":[]}", "{\"tallies\":[[1,\"a\",\"x\"]],\"losses\":[]}",
        "{\"tallies\":[[4,\"a\",\"x\",[1]]],\"losses\":[]}",
        "{\"tallies\":[[1,\"a\",\"x\",[-1]]],\"losses\":[]}",
        "{\"tallies\":[[1,\"a\",\"x\",[0.5]]],\"losses\":[]}",
        "{\"tallies\":[[1,2,\"x\",[1]]],\"losses\":[]}",
        "{\"tallies\":[],\"losses\":[[\"a\",1,\"2\"]]}"}) {
    EXPECT_THROW(tallies_of(bytes), DataError) << bytes;
  }
}

}  // namespace
}  // namespace braid
