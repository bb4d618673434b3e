// Communication is timed through executors, so ranks of a CPU stand in for GPUs here.
#include "calibrate/device_comm_timer.h"

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <tuple>

#include "backends/cpu/cpu_executor.h"
#include "base/errors.h"
#include "comm/transport.h"
#include "memory/memory_plan.h"
#include "sim/analytic_model.h"
#include "sim/measured_model.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kSmall = 4 << 10;
constexpr int64_t kLarge = 64 << 10;

RanksFactory cpu_ranks(LinkOptions links = {}) {
  return [links](std::vector<std::vector<Program>> programs) {
    using Transports = std::vector<std::unique_ptr<Transport>>;
    const auto transports = std::make_shared<Transports>(make_in_process_transports(
        {.num_ranks = static_cast<int>(programs.size()), .links = links}));
    TimedRanks ranks{.meeting = transports, .executors = {}};
    for (size_t rank = 0; rank < programs.size(); ++rank) {
      std::vector<const Program*> pointers;
      for (const Program& program : programs[rank]) {
        pointers.push_back(&program);
      }
      MemoryPlan plan = plan_memory(pointers);
      ranks.executors.push_back(std::make_unique<CpuExecutor>(
          std::move(programs[rank]), std::move(plan),
          CpuExecutorOptions{.transport = transports->at(rank).get()}));
    }
    return ranks;
  };
}

/// As quick as can be.
DeviceCommOptions options_for(int num_ranks) {
  return {.make_ranks = cpu_ranks(),
          .num_ranks = num_ranks,
          .sizes_bytes = {kSmall, kLarge},
          .dtype = DType::kF32,
          .cluster = make_cluster(*find_device("cpu"), num_ranks),
          .timer = {.num_samples = 1, .warm_up_ns = 1, .sample_ns = 1},
          .program_ns = 100'000};
}

TEST(DeviceCommTimer, GroupsAreOfPowersOfTwoAndOfAll) {
  EXPECT_THAT(timed_group_sizes(1), IsEmpty());
  EXPECT_THAT(timed_group_sizes(2), ElementsAre(2));
  EXPECT_THAT(timed_group_sizes(6), ElementsAre(2, 4, 6));
  EXPECT_THAT(timed_group_sizes(8), ElementsAre(2, 4, 8));
}

TEST(DeviceCommTimer, TimesEveryKindOfEverySizeInEveryGroupOnce) {
  DeviceCommOptions options = options_for(3);
  int64_t num_reported = 0;
  options.on_point = [&] { ++num_reported; };
  const std::vector<CommPoint> points = time_device_communication(options);
  EXPECT_EQ(std::ssize(points), num_comm_points(options));
  EXPECT_EQ(num_reported, num_comm_points(options));
  std::map<std::tuple<CommKind, int, int64_t>, int> seen;
  for (const CommPoint& point : points) {
    EXPECT_EQ(comm_fault(point.spec), "");
    EXPECT_EQ(point.spec.algorithm, CommAlgorithm::kRing);
    EXPECT_GT(point.timing.ns, 0);
    ++seen[{point.spec.kind, point.spec.placement.num_ranks, point.spec.bytes}];
  }
  EXPECT_EQ(seen.size(), kNumCommKinds * 2 * 2);
  EXPECT_EQ(points.size(), seen.size());
}

TEST(DeviceCommTimer, CopyEnginesHaveThePointsOfWhatNeedsNoSums) {
  DeviceCommOptions options = options_for(2);
  options.sizes_bytes = {kSmall};
  options.copy_engines = true;
  std::map<CommKind, int> by_copies;
  for (const CommPoint& point : time_device_communication(options)) {
    EXPECT_EQ(comm_fault(point.spec), "");
    by_copies[point.spec.kind] += uses_copy_engine(point.spec.algorithm) ? 1 : 0;
  }
  EXPECT_EQ(by_copies.at(CommKind::kAllGather), 1);
  EXPECT_EQ(by_copies.at(CommKind::kAllToAll), 1);
  EXPECT_EQ(by_copies.at(CommKind::kSendRecv), 1);
  EXPECT_EQ(by_copies.at(CommKind::kAllReduce), 0);
  EXPECT_EQ(by_copies.at(CommKind::kReduceScatter), 0);
}

// A link of 64 MB/s in each direction carries 1 MiB less what stays in 16.4 ms / n.
TEST(DeviceCommTimer, FindsTheRateOfALink) {
  LinkOptions links;
  links.by_kind[static_cast<size_t>(GroupKind::kWorld)] = {.latency_ns = 0, .bytes_per_s = 16e6};
  DeviceCommOptions options = options_for(2);
  options.make_ranks = cpu_ranks(links);
  options.sizes_bytes = {1 << 20};
  options.timer.num_samples = 3;
  for (const CommPoint& point : time_device_communication(options)) {
    if (point.spec.kind == CommKind::kAllGather) {
      const double alone_ns = double{1 << 19} / 16e6 * 1e9;
      // Other work is here, too, while the call and the overhead are timed.
      EXPECT_GE(static_cast<double>(point.timing.ns), 0.6 * alone_ns);
      EXPECT_LE(static_cast<double>(point.timing.ns), 4 * alone_ns);
    }
  }
}

TEST(DeviceCommTimer, AModelAnswersWithWhatTheLibraryTook) {
  DeviceCommOptions options = options_for(2);
  Profile profile{.device_kind = "h200",
                  .origin = {.device = "d", .software = "s", .date = "2026-01-01"}};
  profile.launch_ns = 1;
  profile.communication = time_device_communication(options);
  profile.contention = time_contention(options, default_contention());
  EXPECT_EQ(parse_profile(print_profile(profile), "p.json"), profile);
  const auto model = make_measured_model(profile, 2);
  for (const CommPoint& point : profile.communication) {
    // Whatever the analytic model says of a tree: the library had the choice.
    const CommChoice choice =
        cheapest_algorithm(*model, point.spec.kind, point.spec.placement, point.spec.bytes);
    EXPECT_EQ(choice.spec.algorithm, CommAlgorithm::kRing);
    EXPECT_EQ(choice.cost.source, CostSource::kMeasured);
  }
}

TEST(DeviceCommTimer, RatesOfComputeAndCommunicationAreParts) {
  const Contention otherwise = default_contention();
  const Contention contention = time_contention(options_for(2), otherwise);
  for (const SharedRates& rates :
       {contention.gemm_and_sm_comm, contention.memory_bound_and_sm_comm}) {
    EXPECT_GT(rates.compute, 0);
    EXPECT_LE(rates.compute, 1);
    EXPECT_GT(rates.communication, 0);
    EXPECT_LE(rates.communication, 1);
  }
  EXPECT_EQ(contention.compute_and_copy_engine, otherwise.compute_and_copy_engine);
  EXPECT_EQ(contention.comm_sms, otherwise.comm_sms);
}

/// How long both take if `first` ends first: it takes longer by its rate, while the other gets done
/// what its own rate allows.
double together_ns(double first_ns, double first_rate, double other_ns, double other_rate) {
  const double shared_ns = first_ns / first_rate;
  return shared_ns + other_ns - shared_ns * other_rate;
}

TEST(SharedRates, AreFoundFromHowLongBothTakeTogether) {
  std::mt19937 random(9);
  for (int round = 0; round < 100; ++round) {
    const double compute = std::uniform_real_distribution<double>(0.3, 1.0)(random);
    const double comm = std::uniform_real_distribution<double>(1.1 - compute, 1.0)(random);
    const SharedRates found =
        shared_rates({.comm_longer = {1e6, 9e6, together_ns(1e6, compute, 9e6, comm)},
                      .compute_longer = {9e6, 1e6, together_ns(1e6, comm, 9e6, compute)}});
    EXPECT_NEAR(found.compute, compute, 1e-3);
    EXPECT_NEAR(found.communication, comm, 1e-3);
  }
}

// One after the other is as quick then, and which of them goes first cannot be seen.
TEST(SharedRates, AreAboutHalvesWhereNothingIsGainedTogether) {
  const SharedRates rates =
      shared_rates({.comm_longer = {1e6, 4e6, 5e6}, .compute_longer = {4e6, 1e6, 5e6}});
  EXPECT_NEAR(rates.compute, 0.5, 0.02);
  EXPECT_NEAR(rates.communication, 0.5, 0.02);
}

TEST(SharedRates, NoiseDoesNotMakeAnythingFasterThanAlone) {
  const SharedRates rates =
      shared_rates({.comm_longer = {1e6, 4e6, 3.9e6}, .compute_longer = {4e6, 1e6, 3.8e6}});
  EXPECT_EQ(rates, (SharedRates{1.0, 1.0}));
  const SharedRates worst =
      shared_rates({.comm_longer = {1e6, 4e6, 40e6}, .compute_longer = {4e6, 1e6, 40e6}});
  EXPECT_GT(worst.compute, 0);
  EXPECT_GT(worst.communication, 0);
}

}  // namespace
}  // namespace braid
