#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "comm/transport.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Transports = std::vector<std::unique_ptr<Transport>>;

Group group_of(std::string name, std::vector<int> ranks) {
  return {std::move(name), GroupKind::kData, std::move(ranks)};
}

Group all_ranks(int num_ranks) {
  std::vector<int> ranks(static_cast<size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group_of("all", std::move(ranks));
}

/// Runs `body(i)` for i in [0, count) on a thread each; the message that each threw, or "".
std::vector<std::string> on_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      std::string& error = errors[static_cast<size_t>(i)];
      try {
        body(i);
      } catch (const AbortedError& caught) {
        error = std::string("aborted: ") + caught.what();
      } catch (const DeviceError& caught) {
        error = caught.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

void random_delay(std::mt19937& random) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
}

template <class T>
std::vector<T> random_values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(count);
  for (T& value : values) {
    value = static_cast<T>(normal(random));
  }
  return values;
}

constexpr size_t kSizes[] = {0, 1, 2, 17, 127, 1009, 5000};

/// Every rank calls all_reduce once per size; the results of all ranks, one after the other.
template <class T>
std::vector<std::vector<T>> reduce_all_sizes(int num_ranks, uint32_t seed) {
  const Transports transports = make_in_process_transports({.num_ranks = num_ranks});
  const Group group = all_ranks(num_ranks);
  std::vector<std::vector<T>> results(static_cast<size_t>(num_ranks));
  const auto errors = on_threads(num_ranks, [&](int rank) {
    std::mt19937 random(seed + static_cast<uint32_t>(rank));
    for (const size_t size : kSizes) {
      auto values = random_values<T>(size, static_cast<uint32_t>(100 * size) + rank);
      random_delay(random);
      transports[static_cast<size_t>(rank)]->all_reduce(
          group, values.data(), static_cast<int64_t>(size), dtype_of<T>(), "values");
      auto& result = results[static_cast<size_t>(rank)];
      result.insert(result.end(), values.begin(), values.end());
    }
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  return results;
}

/// Sums in rank order, accumulated in `Sum`.
template <class T, class Sum>
std::vector<T> naive_sums(int num_ranks) {
  std::vector<T> all;
  for (const size_t size : kSizes) {
    std::vector<Sum> sums(size);
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto values = random_values<T>(size, static_cast<uint32_t>(100 * size) + rank);
      for (size_t i = 0; i < size; ++i) {
        sums[i] = rank == 0 ? static_cast<Sum>(values[i]) : sums[i] + static_cast<Sum>(values[i]);
      }
    }
    for (const Sum sum : sums) {
      all.push_back(static_cast<T>(sum));
    }
  }
  return all;
}

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

class AllReduceOf : public ::testing::TestWithParam<int> {};

TEST_P(AllReduceOf, EqualsSumsInRankOrderBitwiseOnEveryRankAndRun) {
  const int num_ranks = GetParam();
  const auto f32 = naive_sums<float, float>(num_ranks);
  const auto f64 = naive_sums<double, double>(num_ranks);
  const auto bf16 = naive_sums<BFloat16, float>(num_ranks);
  for (uint32_t run = 0; run < 3; ++run) {
    for (const auto& result : reduce_all_sizes<float>(num_ranks, 7 + run)) {
      EXPECT_TRUE(same_bytes(result, f32));
    }
    for (const auto& result : reduce_all_sizes<double>(num_ranks, 77 + run)) {
      EXPECT_TRUE(same_bytes(result, f64));
    }
    for (const auto& result : reduce_all_sizes<BFloat16>(num_ranks, 777 + run)) {
      EXPECT_TRUE(same_bytes(result, bf16));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, AllReduceOf, ::testing::Values(1, 2, 3, 4, 5, 8));

TEST(InProcess, GroupOrderAndNotRankOrderIsTheOrderOfTheSum) {
  const Transports transports = make_in_process_transports({.num_ranks = 3});
  const Group group = group_of("turned", {0, 2, 1});
  const float values[] = {1e8f, 1.0f, -1e8f};  // 1e8 - 1e8 + 1, and not 1e8 + 1 - 1e8
  std::vector<float> results(3);
  on_threads(3, [&](int rank) {
    float value = values[rank];
    transports[static_cast<size_t>(rank)]->all_reduce(group, &value, 1, DType::kF32, "x");
    results[static_cast<size_t>(rank)] = value;
  });
  EXPECT_THAT(results, ::testing::Each(1.0f));
}

// Ranks 0..3 in rows {0,1}, {2,3} and columns {0,2}, {1,3}, and all: three threads per rank, each
// with its own group, many calls in any interleaving.
TEST(InProcess, GroupsDoNotDisturbEachOther) {
  constexpr int kCalls = 40;
  const Transports transports = make_in_process_transports({.num_ranks = 4});
  const auto group_for = [](int rank, int kind) {
    if (kind == 0) {
      return group_of("row", rank < 2 ? std::vector{0, 1} : std::vector{2, 3});
    }
    return kind == 1 ? group_of("column", {rank % 2, rank % 2 + 2}) : all_ranks(4);
  };
  const auto errors = on_threads(12, [&](int thread) {
    const int rank = thread / 3;
    const Group group = group_for(rank, thread % 3);
    std::mt19937 random(static_cast<uint32_t>(thread));
    for (int call = 0; call < kCalls; ++call) {
      std::vector<double> values(33, 1000.0 * call + rank);
      if (random() % 8 == 0) {
        random_delay(random);
      }
      transports[static_cast<size_t>(rank)]->all_reduce(group, values.data(), 33, DType::kF64,
                                                        std::to_string(call));
      double expected = 0;
      for (const int member : group.ranks) {
        expected += 1000.0 * call + member;
      }
      ASSERT_THAT(values, ::testing::Each(expected));
    }
  });
  EXPECT_THAT(errors, ::testing::Each(""));
}

/// Two ranks make one call each, of these arguments.
struct CallArguments {
  int64_t num_elems;
  DType dtype;
  std::string what;
};

std::vector<std::string> call_on_two_ranks(const CallArguments& first,
                                           const CallArguments& second) {
  const Transports transports = make_in_process_transports({.num_ranks = 2});
  return on_threads(2, [&](int rank) {
    std::vector<double> values(100);
    const CallArguments& call = rank == 0 ? first : second;
    transports[static_cast<size_t>(rank)]->all_reduce(all_ranks(2), values.data(), call.num_elems,
                                                      call.dtype, call.what);
  });
}

TEST(InProcess, NamesBothSidesOfAMismatchOnEveryRank) {
  const CallArguments good{8, DType::kF32, "layers.1"};
  const CallArguments wrong[] = {
      {7, DType::kF32, "layers.1"}, {8, DType::kBF16, "layers.1"}, {8, DType::kF32, "layers.2"}};
  const char* named[] = {"all_reduce of 7 f32 (layers.1)", "all_reduce of 8 bf16 (layers.1)",
                         "all_reduce of 8 f32 (layers.2)"};
  for (size_t i = 0; i < 3; ++i) {
    for (const std::string& message : call_on_two_ranks(good, wrong[i])) {
      EXPECT_EQ(message, std::string("group all, call 1: rank 0 asks for all_reduce of 8 f32 "
                                     "(layers.1), but rank 1 for ") +
                             named[i]);
    }
  }
}

TEST(InProcess, AbortReleasesWaitingRanksAndRefusesLaterCalls) {
  const Transports transports = make_in_process_transports({.num_ranks = 4});
  const auto errors = on_threads(4, [&](int rank) {
    Transport& transport = *transports[static_cast<size_t>(rank)];
    float value = 1;
    if (rank == 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      transport.abort("rank 3 lost its disk");
      transport.abort("rank 3 lost its head");
    }
    transport.all_reduce(all_ranks(4), &value, 1, DType::kF32, "x");
  });
  EXPECT_THAT(errors, ::testing::Each("aborted: rank 3 lost its disk"));
}

// An abort may come at any moment of a call; no rank may then touch a buffer whose owner has left.
// The buffers are freed at once, so that the address and thread sanitizers see a late access.
TEST(InProcess, AbortAtAnyMomentLeavesNobodyInAFreedBuffer) {
  for (uint32_t run = 0; run < 40; ++run) {
    const Transports transports = make_in_process_transports({.num_ranks = 3});
    on_threads(4, [&](int thread) {
      if (thread == 3) {
        std::this_thread::sleep_for(std::chrono::microseconds(37 * run));
        return transports[0]->abort("enough");
      }
      for (int call = 0; call < 1000; ++call) {
        std::vector<float> values(3000);
        transports[static_cast<size_t>(thread)]->all_reduce(all_ranks(3), values.data(), 3000,
                                                            DType::kF32, "x");
      }
    });
  }
}

TEST(InProcess, TimeoutNamesTheMissingRanksAndTheirLastCalls) {
  const Transports transports =
      make_in_process_transports({.num_ranks = 3, .timeout_ns = 5'000'000});
  float values[4] = {};
  transports[1]->all_reduce(group_of("self", {1}), values, 4, DType::kF32, "first");
  const auto call_of = [&](size_t rank) {
    transports[rank]->all_reduce(all_ranks(3), values, 2, DType::kF32, "second");
  };
  const std::string told = message_of<DeviceError>([&] { call_of(0); });
  EXPECT_EQ(told,
            "rank 0 waited 0.005 s in group all, call 1, all_reduce of 2 f32 (second), for ranks "
            "1, 2; rank 1: last call all_reduce of 4 f32 (first) in group self, call 1, finished; "
            "rank 2: no call yet");
  // Those who come later hear the same.
  EXPECT_EQ(message_of<AbortedError>([&] { call_of(1); }), told);
  EXPECT_EQ(message_of<AbortedError>([&] { call_of(2); }), told);
}

TEST(InProcess, RefusesCallsThatAreBugs) {
  const Transports transports = make_in_process_transports({.num_ranks = 2});
  float value = 1;
  const auto call = [&](const Group& group, DType dtype) {
    transports[0]->all_reduce(group, &value, 1, dtype, "x");
  };
  EXPECT_THAT(message_of<InternalError>([&] { call(group_of("g", {1}), DType::kF32); }),
              HasSubstr("rank 0 is not in group g"));
  EXPECT_THAT(message_of<InternalError>([&] {
                call(group_of("g", {0, 0}), DType::kF32);
              }),
              HasSubstr("twice"));
  EXPECT_THAT(message_of<InternalError>([&] {
                call(group_of("g", {0, 2}), DType::kF32);
              }),
              AllOf(HasSubstr("group g"), HasSubstr("rank 2 of 2")));
  EXPECT_THAT(message_of<InternalError>([&] { call(group_of("g", {0}), DType::kU8); }),
              HasSubstr("u8"));
  EXPECT_THROW(make_in_process_transports({.num_ranks = 0}), InternalError);
}

TEST(InProcess, RefusesTwoCallsOfOneRankInOneGroupAtOnce) {
  const Transports transports = make_in_process_transports({.num_ranks = 2});
  std::vector<std::string> bugs(2);
  on_threads(2, [&](int thread) {
    float value = 1;
    try {
      transports[0]->all_reduce(all_ranks(2), &value, 1, DType::kF32, "x");
    } catch (const InternalError& error) {
      bugs[static_cast<size_t>(thread)] = error.what();
      transports[0]->abort("found");
    }
  });
  EXPECT_THAT(bugs[0] + bugs[1], HasSubstr("rank 0 is in two calls of group all at once"));
}

}  // namespace
}  // namespace braid
