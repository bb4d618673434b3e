#include "programs/published_rows.h"

#include <gmock/gmock.h>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"
#include "programs/fitting_half.h"
#include "sim/device_file.h"
#include "support/source_path.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The set that bench/simulator.md reports: its runs exist, and the coin stays.
TEST(PublishedRows, AreRunsOfKnownStacksInTwoHalves) {
  const std::vector<PublishedRow> rows = load_published_rows(source_path("bench/published"));
  EXPECT_GE(rows.size(), 100u);
  size_t num_fitted = 0;
  for (const PublishedRow& row : rows) {
    num_fitted += row.is_fitted ? 1 : 0;
    EXPECT_EQ(with_stack({}, row.stack).stack.name, row.stack) << row.name;
  }
  EXPECT_GE(num_fitted, 40u);
  EXPECT_GE(rows.size() - num_fitted, 40u);
  EXPECT_TRUE(is_fitting_row("dgxc-25-8b-8"));
  EXPECT_FALSE(is_fitting_row("dgxc-25-8b-128"));
}

TEST(PublishedRows, RefuseMistakesByLine) {
  const TempFolder folder;
  const auto error_with = [&](const std::string& row) {
    write_test_file(folder / "models.txt",
                    "m | gpt2 | 2 | 64 | 4 | 4 | 256 | 512 | true | a paper\n");
    write_test_file(folder / "rows.txt", "# comment\n" + row + "\n");
    return folder.path().string();
  };
  const std::string end = " | 64 | 8 | 1 | 1-1-1-1 |  | 1.5 | a paper";
  EXPECT_EQ(load_published_rows(error_with("a | eager | h100x8 | m" + end)).front().seconds, 1.5);
  EXPECT_THAT(message_of<DataError>([&] { load_published_rows(error_with("a | b")); }),
              HasSubstr("rows.txt:2: 2 fields instead of 11"));
  EXPECT_THAT(message_of<DataError>(
                  [&] { load_published_rows(error_with("a | eager | h100x8 | n" + end)); }),
              HasSubstr("rows.txt:2: models.txt has no model \"n\""));
  EXPECT_THAT(message_of<ConfigError>(
                  [&] { load_published_rows(error_with("a | eager | h100x3 | m" + end)); }),
              HasSubstr("rows.txt:2: "));
}

}  // namespace
}  // namespace braid
