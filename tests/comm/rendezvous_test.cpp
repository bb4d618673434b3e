#include "comm/rendezvous.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/errors.h"
#include "comm/transport.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr int64_t kLongNs = 60'000'000'000;

template <class Error, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Rendezvous, EveryRankGetsWhatOneLeft) {
  const auto ends = make_in_process_rendezvous(3, kLongNs);
  std::vector<std::string> got(3);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] { got[rank] = ends[rank]->get("id of data"); });
  }
  ends[1]->put("another", "no");
  ends[2]->put("id of data", std::string("a\0b", 3));
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(got, ::testing::Each(std::string("a\0b", 3)));
}

TEST(Rendezvous, ASecondValueIsABug) {
  const auto ends = make_in_process_rendezvous(2, kLongNs);
  ends[0]->put("id", "x");
  EXPECT_THAT(message_of<InternalError>([&] { ends[1]->put("id", "x"); }),
              HasSubstr("rank 1 puts a second value under id"));
}

TEST(Rendezvous, WhatNobodyLeavesIsMissed) {
  const auto ends = make_in_process_rendezvous(2, 20'000'000);
  EXPECT_EQ(message_of<DeviceError>([&] { ends[1]->get("id of tensor"); }),
            "rank 1 waited 0.02 s for id of tensor");
}

TEST(Rendezvous, AbortEndsWaitsAndTheFirstReasonStays) {
  const auto ends = make_in_process_rendezvous(2, kLongNs);
  EXPECT_FALSE(ends[1]->aborted());
  std::string message;
  std::thread waiting([&] { message = message_of<AbortedError>([&] { ends[0]->get("id"); }); });
  ends[1]->abort("rank 1 has no memory");
  waiting.join();
  ends[0]->abort("later");
  EXPECT_EQ(message, "rank 1 has no memory");
  EXPECT_EQ(ends[0]->aborted(), "rank 1 has no memory");
}

TEST(Rendezvous, WhatWasLeftCanBeHadAfterAnAbort) {
  const auto ends = make_in_process_rendezvous(2, kLongNs);
  ends[0]->put("id", "x");
  ends[0]->abort("late");
  EXPECT_EQ(ends[1]->get("id"), "x");
}

TEST(Rendezvous, OthersAnswerWhatARankAsks) {
  const auto ends = make_in_process_rendezvous(3, kLongNs);
  const StandingAnswer of_0(*ends[0], "where", [] { return "here"; });
  const StandingAnswer of_1(*ends[1], "where", [] { return std::string("a\0b", 3); });
  const StandingAnswer other(*ends[2], "why", [] { return "because"; });
  {
    const StandingAnswer of_2(*ends[2], "where", [] { return ""; });
    EXPECT_THAT(ends[0]->ask_others("where", std::chrono::seconds(9)),
                ElementsAre(Pair(1, std::string("a\0b", 3)), Pair(2, "")));
  }
  ends[0]->abort("over");
  EXPECT_THAT(ends[2]->ask_others("where", std::chrono::seconds(9)),
              ElementsAre(Pair(0, "here"), Pair(1, std::string("a\0b", 3))));
  EXPECT_THAT(ends[1]->ask_others("where", std::chrono::seconds(9)), ElementsAre(Pair(0, "here")));
}

TEST(Rendezvous, QuestionsOfPlacesDoNotMeet) {
  const auto ends = make_in_process_rendezvous(2, kLongNs);
  for (const char* value : {"of the first", "of the second"}) {
    const auto asked = open_place(*ends[0]);
    const auto asking = open_place(*ends[1]);
    const StandingAnswer answer(*asked, "where", [=] { return value; });
    EXPECT_THAT(asking->ask_others("where", std::chrono::seconds(9)), ElementsAre(Pair(0, value)));
  }
}

// As two executors of one process do, one after the other, or both at once.
TEST(Rendezvous, PlacesDoNotMeet) {
  const auto ends = make_in_process_rendezvous(2, kLongNs);
  for (const char* value : {"of the first", "of the second"}) {
    const auto left = open_place(*ends[0]);
    left->put("id of data", value);
    EXPECT_EQ(open_place(*ends[1])->get("id of data"), value);
    EXPECT_THROW(left->put("id of data", "again"), InternalError);
  }
  const auto place = open_place(*ends[0]);
  ends[1]->abort("rank 1 has no memory");
  EXPECT_EQ(place->aborted(), "rank 1 has no memory");
  EXPECT_EQ(message_of<AbortedError>([&] { place->get("nothing"); }), "rank 1 has no memory");
}

TEST(Rendezvous, NobodyPassesABarrierBeforeAllHaveCome) {
  constexpr int kRanks = 5;
  const auto ends = make_in_process_rendezvous(kRanks, kLongNs);
  std::atomic<int> num_come{0};
  std::vector<int> seen(2 * kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round < 2; ++round) {
        // In one round the first rank is the last to come, in the other it is the first.
        std::this_thread::sleep_for(
            std::chrono::milliseconds(round == 0 ? 4 * (kRanks - rank) : 4 * rank));
        ++num_come;
        barrier(*ends[static_cast<size_t>(rank)], fmt::format("gate {}", round), rank, kRanks);
        seen[static_cast<size_t>(round * kRanks + rank)] = num_come;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_GE(seen[static_cast<size_t>(rank)], kRanks) << rank;
    EXPECT_EQ(seen[static_cast<size_t>(kRanks + rank)], 2 * kRanks) << rank;
  }
}

TEST(Rendezvous, ABarrierWaitsForTenTimeouts) {
  const auto ends = make_in_process_rendezvous(2, 20'000'000);
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    barrier(*ends[1], "the gate", 1, 2);
  });
  barrier(*ends[0], "the gate", 0, 2);
  late.join();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(message_of<DeviceError>([&] { barrier(*ends[0], "another", 0, 2); }),
            "rank 0 waited 0.02 s for rank 1 at another");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(200));
}

TEST(Rendezvous, AnAbortEndsABarrierAtOnce) {
  const auto ends = make_in_process_rendezvous(3, kLongNs);
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<size_t>(rank);
      said[at] = message_of<AbortedError>([&] { barrier(*ends[at], "the gate", rank, 3); });
    });
  }
  ends[2]->abort("rank 2 has no memory");
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(said, ::testing::Each(std::string("rank 2 has no memory")));
}

TEST(Rendezvous, OnlyLaterPlacesShowInMessages) {
  const auto ends = make_in_process_rendezvous(1, 1'000'000);
  const auto first = open_place(*ends[0]);
  const auto second = open_place(*ends[0]);
  EXPECT_EQ(message_of<DeviceError>([&] { first->get("id"); }), "rank 0 waited 0.001 s for id");
  EXPECT_EQ(message_of<DeviceError>([&] { second->get("id"); }),
            "rank 0 waited 0.001 s for id (place 2)");
}

}  // namespace
}  // namespace braid
