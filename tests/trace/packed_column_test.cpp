#include "trace/packed_column.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

namespace braid {
namespace {

using Json = nlohmann::ordered_json;
using Values = std::vector<int64_t>;

/// What columns.js does.
Values unpacked(const Json& column) {
  if (column.is_array()) {
    return column.get<Values>();
  }
  Values values;
  if (column.contains("delta")) {
    values = column["delta"].get<Values>();
    std::partial_sum(values.begin(), values.end(), values.begin());
    return values;
  }
  const auto runs = column.at("runs").get<Values>();
  for (size_t i = 0; i < runs.size(); i += 2) {
    values.insert(values.end(), static_cast<size_t>(runs[i + 1]), runs[i]);
  }
  return values;
}

TEST(PackedColumn, FewValuesStayAsTheyAre) {
  EXPECT_EQ(packed_column(Values{}), Json::array());
  EXPECT_EQ(packed_column(Values{5, 20}), Json({5, 20}));
}

TEST(PackedColumn, TimesAreDifferences) {
  const Values times = {1'000'000'100, 1'000'000'200, 1'000'000'250, 1'000'000'250};
  const Json packed = packed_column(times);
  EXPECT_EQ(packed, (Json{{"delta", {1'000'000'100, 100, 50, 0}}}));
  EXPECT_EQ(unpacked(packed), times);
}

TEST(PackedColumn, RepeatedValuesAreRuns) {
  Values values(100, -1);
  values.insert(values.end(), 50, 7);
  const Json packed = packed_column(values);
  EXPECT_EQ(packed, (Json{{"runs", {-1, 100, 7, 50}}}));
  EXPECT_EQ(unpacked(packed), values);
}

TEST(PackedColumn, HoldsLargeAndNegativeValues) {
  const int64_t most = std::numeric_limits<int64_t>::max() / 2;
  for (const Values& values : {Values{most, most, -most}, Values{-3, -3, -3, 4}, Values{0}}) {
    EXPECT_EQ(unpacked(packed_column(values)), values);
  }
}

TEST(PackedColumn, IsNeverLongerThanTheValues) {
  Values values;
  for (int64_t i = 0; i < 500; ++i) {
    values.push_back(i * 7919 % 503 * (i % 3 == 0 ? -1'000'003 : 1));
    const Json packed = packed_column(values);
    EXPECT_LE(packed.dump().size(), Json(values).dump().size());
    EXPECT_EQ(unpacked(packed), values);
  }
}

}  // namespace
}  // namespace braid
