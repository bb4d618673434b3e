#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "sim/analytic_model.h"
#include "sim/measured_model.h"
#include "sim/op_family.h"
#include "sim/profile.h"
#include "support/source_path.h"

namespace braid {
namespace {

std::vector<std::string> checked_in_profiles() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("profiles"))) {
    if (entry.path().extension() == ".json") {
      paths.push_back(entry.path().string());
    }
  }
  return paths;
}

// Where an op has got another operand or attribute since a profile was measured, this fails: edit
// the points of that op, or measure again.
TEST(CheckedInProfiles, AnswerTheQuestionsOfThisVersion) {
  EXPECT_THAT(checked_in_profiles(), testing::Contains(testing::EndsWith("/h200.json")));
  for (const std::string& path : checked_in_profiles()) {
    const Profile profile = load_profile(path);
    EXPECT_GT(profile.tasks.size(), 100u) << path;
    EXPECT_FALSE(profile.origin.date.empty()) << path;
    const auto model = make_measured_model(profile, 8);
    for (const TaskPoint& point : profile.tasks) {
      EXPECT_EQ(model->task_cost(point.spec), (Cost{point.timing.ns, CostSource::kMeasured}))
          << describe_spec(point.spec);
    }
  }
}

/// Mean relative error by family of specs that take at least `shortest_ns`, by their own profile
/// without them (`leave_out`), or by the analytic model.
std::map<OpFamily, double> mean_errors(const Profile& profile, bool leave_out,
                                       int64_t shortest_ns) {
  std::map<OpFamily, double> sums;
  std::map<OpFamily, double> counts;
  const auto analytic = make_analytic_model(make_cluster(*find_device(profile.device_kind), 1));
  for (size_t i = 0; i < profile.tasks.size(); ++i) {
    const TaskPoint& point = profile.tasks[i];
    if (point.timing.ns < shortest_ns) {
      continue;
    }
    Profile others = profile;
    others.tasks.erase(others.tasks.begin() + static_cast<std::ptrdiff_t>(i));
    const int64_t ns = leave_out ? make_measured_model(others, 1)->task_ns(point.spec)
                                 : analytic->task_ns(point.spec);
    const OpFamily family = family_of(point.spec);
    sums[family] += std::abs(static_cast<double>(ns) / static_cast<double>(point.timing.ns) - 1);
    counts[family] += 1;
  }
  for (auto& [family, sum] : sums) {
    sum /= counts[family];
  }
  return sums;
}

// How far the models are off on an H200, for tasks of 20 us and more: 0.033, 0.041 and 0.138
// when the profile was measured; interpolated 0.028, 0.047 and 0.026. Limits leave little.
TEST(CheckedInProfiles, ModelsAgreeWithTheMeasurementsOfAnH200) {
  const Profile profile = load_profile(source_path("profiles/h200.json"));
  const auto analytic = mean_errors(profile, false, 20'000);
  EXPECT_LT(analytic.at(OpFamily::kGemm), 0.06);
  EXPECT_LT(analytic.at(OpFamily::kAttention), 0.05);
  EXPECT_LT(analytic.at(OpFamily::kMemoryBound), 0.15);
  const auto interpolated = mean_errors(profile, true, 20'000);
  EXPECT_LT(interpolated.at(OpFamily::kGemm), 0.05);
  EXPECT_LT(interpolated.at(OpFamily::kAttention), 0.05);
  EXPECT_LT(interpolated.at(OpFamily::kMemoryBound), 0.035);
}

// Communication between two H200 as steps have it, from 64 KiB on: 4.2% in the mean and 17% at most
// when the model was fitted. Without the time that a call takes to start it was 38% and 87%.
TEST(CheckedInProfiles, TheAnalyticModelAgreesWithCommunicationBetweenTwo) {
  const Profile profile = load_profile(source_path("profiles/h200x2.json"));
  const auto analytic = make_analytic_model(make_cluster(*find_device(profile.device_kind), 2));
  double sum = 0;
  for (const CommPoint& point : profile.communication) {
    const double error =
        static_cast<double>(analytic->comm_ns(point.spec)) / static_cast<double>(point.timing.ns) -
        1;
    EXPECT_LT(std::abs(error), 0.2)
        << comm_kind_name(point.spec.kind) << " by " << comm_algorithm_name(point.spec.algorithm)
        << ", " << point.spec.bytes << " bytes";
    sum += std::abs(error);
  }
  ASSERT_GT(profile.communication.size(), 70u);
  EXPECT_LT(sum / static_cast<double>(profile.communication.size()), 0.06);
}

}  // namespace
}  // namespace braid
