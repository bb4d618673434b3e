#include "programs/nccl_tables.h"

#include <gmock/gmock.h>

#include <cmath>

#include "base/errors.h"
#include "base/expect_error.h"
#include "base/temp_folder.h"
#include "sim/analytic_model.h"
#include "support/source_path.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

std::vector<NcclTable> published_tables() {
  return load_nccl_tables(source_path("bench/published/collectives.txt"));
}

/// Mean absolute error of one half of the published times.
double mean_error(const std::vector<NcclTable>& tables, bool is_fitted) {
  double sum = 0;
  double count = 0;
  for (const NcclTable& table : tables) {
    if (table.is_fitted != is_fitted) {
      continue;
    }
    const auto model = make_analytic_model(parse_cluster(table.cluster));
    const GroupPlacement place = place_neighbours(model->cluster(), model->cluster().num_devices);
    for (const NcclTime& time : table.times) {
      const Cost cost = cheapest_comm(*model, table.kind, place, time.bytes);
      sum += std::abs(static_cast<double>(cost.ns) * 1e-3 / time.us - 1);
      ++count;
    }
  }
  return sum / count;
}

// The set that bench/simulator.md reports: both halves have times of all sizes, and the coin stays.
TEST(NcclTables, CoverSizesAndSpansInTwoHalves) {
  const std::vector<NcclTable> tables = published_tables();
  EXPECT_GE(tables.size(), 15u);
  for (const bool is_fitted : {false, true}) {
    int64_t least = INT64_MAX;
    int64_t most = 0;
    size_t count = 0;
    for (const NcclTable& table : tables) {
      count += table.is_fitted == is_fitted ? table.times.size() : 0;
      for (const NcclTime& time : table.times) {
        least = table.is_fitted == is_fitted ? std::min(least, time.bytes) : least;
        most = table.is_fitted == is_fitted ? std::max(most, time.bytes) : most;
      }
    }
    EXPECT_GE(count, 60u);
    EXPECT_EQ(least, 8 << 10);
    EXPECT_EQ(most, int64_t{8} << 30);
  }
}

// 10.4% and 14.1% when the prices were fitted (bench/simulator.md); an error in a formula costs
// more than the two points between.
TEST(NcclTables, PricesAreAsCloseAsThePageSays) {
  const std::vector<NcclTable> tables = published_tables();
  EXPECT_LT(mean_error(tables, true), 0.125);
  EXPECT_LT(mean_error(tables, false), 0.16);
}

TEST(NcclTables, RefuseMistakesByLine) {
  const TempFolder folder;
  const std::string path = (folder.path() / "tables.txt").string();
  const auto fault_of = [&](const std::string& text) {
    write_test_file(path, text);
    return message_of<DataError>([&] { static_cast<void>(load_nccl_tables(path)); });
  };
  const std::string table = "a | h100x8 | all_reduce | a page\n";
  write_test_file(path, "# comment\n" + table + "8192 12.5\n");
  EXPECT_EQ(load_nccl_tables(path).front().times.front().us, 12.5);
  EXPECT_THAT(fault_of("8192 12.5\n"), HasSubstr("tables.txt:1: a time before the first table"));
  EXPECT_THAT(fault_of("a | b\n"), HasSubstr("tables.txt:1: 2 fields instead of 4"));
  EXPECT_THAT(fault_of("a | h100x8 | all_sum | a page\n"),
              HasSubstr("tables.txt:1: unknown operation \"all_sum\""));
  EXPECT_THAT(fault_of(table + "8192\n"),
              HasSubstr("tables.txt:2: \"8192\" is not bytes and microseconds"));
  EXPECT_THAT(fault_of(table + "8192 -1\n"),
              HasSubstr("tables.txt:2: \"-1\" is not a number above 0"));
  EXPECT_THAT(fault_of(table + table), HasSubstr("tables.txt:2: a second table a"));
}

}  // namespace
}  // namespace braid
