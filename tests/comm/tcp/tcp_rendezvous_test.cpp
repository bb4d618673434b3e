

#include "base/byte_fields.h"
#include "comm/tcp/frame.h"
#include "comm/tcp/rendezvous_protocol.h"
#include "comm/wires.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int64_t kSecond = 1'000'000'000;

/// Waits for the reason of the abort.
std::string reason_at(ProcessGroup& group) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!group.aborted() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return group.aborted().value_or("nothing has happened");
}

TEST(TcpRendezvous, EveryProcessGetsWhatOneLeft) {
  LocalProcesses processes(4);
  std::string large(300'000, 'x');
  large[17] = '\0';
  const auto errors = on_threads(4, [&](int i) {
    if (i == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      processes[i].put("name", large);
    }
    EXPECT_EQ(processes[i].get("name"), large);
    processes[i].put("of " + std::to_string(i), std::to_string(i));
    for (int other = 0; other < 4; ++other) {
      EXPECT_EQ(processes[i].get("of " + std::to_string(other)), std::to_string(other));
    }
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THROW(processes[1].put("name", "again"), InternalError);
}

TEST(TcpRendezvous, GathersInTheOrderOfProcesses) {
  LocalProcesses processes(3);
  const auto errors = on_threads(3, [&](int i) {
    ProcessGroup& group = processes[i];
    for (int round = 0; round < 50; ++round) {  // one name, again and again
      const std::string own = fmt::format("{} in {}", i, round);
      EXPECT_THAT(group.all_gather("all", own),
                  ElementsAre(fmt::format("0 in {}", round), fmt::format("1 in {}", round),
                              fmt::format("2 in {}", round)));
      const std::vector<std::string> first = group.gather("one", own);
      EXPECT_EQ(first.size(), i == 0 ? 3u : 0u);
      EXPECT_EQ(group.broadcast("from 0", own), fmt::format("0 in {}", round));
      group.barrier("all");
    }
    group.finish();
  });
  EXPECT_THAT(errors, Each(""));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(processes[i].aborted(), std::nullopt);
    EXPECT_EQ(processes[i].leads(), i == 0);
  }
}

TEST(TcpRendezvous, WhatNobodyLeavesIsMissed) {
  LocalProcesses processes(2, kSecond / 20);
  EXPECT_EQ(message_of<DeviceError>([&] { processes[1].get("a name"); }),
            "rank 1 waited 0.05 s for a name");
}

TEST(TcpRendezvous, AbortEndsWaitsAndTheFirstReasonStays) {
  LocalProcesses processes(3);
  const auto errors = on_threads(3, [&](int i) {
    if (i == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      processes[i].abort("first");
      return processes[i].abort("second");
    }
    i == 0 ? static_cast<void>(processes[i].get("nothing")) : processes[i].barrier("nobody");
  });
  EXPECT_THAT(errors, ElementsAre("aborted: first", "", "aborted: first"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(processes[i].aborted(), "first");
    EXPECT_FALSE(processes[i].leader_is_lost());
  }
}

// As when a process is killed: no goodbye, only the end of its connection. In this process the end
// of an end says that it gave up; a connection that nobody owns says nothing.
TEST(TcpRendezvous, AProcessThatGivesUpEndsTheRun) {
  LocalProcesses processes(3);
  processes.drop(2);
  EXPECT_THAT(reason_at(processes[0]), AllOf(HasSubstr("rank 2 ("), HasSubstr("has given up")));
  EXPECT_EQ(reason_at(processes[1]), reason_at(processes[0]));
}

// While all of them wait for something else.
TEST(TcpRendezvous, EveryProcessAnswersTheOthers) {
  LocalProcesses processes(4);
  const std::string large(300'000, 'x');
  std::vector<std::unique_ptr<StandingAnswer>> answers;
  for (const int i : {0, 1, 3}) {  // 2 has none
    answers.push_back(std::make_unique<StandingAnswer>(
        processes[i], "where", [&large, i] { return fmt::format("{} {}", i, large); }));
  }
  const auto errors = on_threads(4, [&](int i) {
    for (int round = 0; round < 20; ++round) {
      std::map<int, std::string> expected;
      for (const int other : {0, 1, 3}) {
        expected[other] = fmt::format("{} {}", other, large);
      }
      expected.erase(i);
      EXPECT_EQ(processes[i].ask_others("where", std::chrono::seconds(60)), expected);
      EXPECT_THAT(processes[i].ask_others("why", std::chrono::seconds(60)), IsEmpty());
    }
    processes[i].barrier("all");
  });
  EXPECT_THAT(errors, Each(""));
  answers.erase(answers.begin());  // 0's
  EXPECT_THAT(processes[2].ask_others("where", std::chrono::seconds(60)),
              ElementsAre(Pair(1, "1 " + large), Pair(3, "3 " + large)));
}

/// A client that speaks the protocol by hand, as far as a test wants.
class HandMade {
 public:
  HandMade(int port, const std::string& token, int count, int process)
      : socket_(connect_to({"127.0.0.1", port},
                           std::chrono::steady_clock::now() + std::chrono::seconds(10))) {
    std::string body(kRendezvousMagic);
    body += ByteWriter().text(token).number(count).number(process).text("box:7").take();
    send(RendezvousMessage::kHello, body);
  }
  void send(RendezvousMessage type, const std::string& body) {
    send_all(socket_, pack_frame(static_cast<uint8_t>(type), body));
  }
  /// Type and body of the next frame; type 0 at the end.
  Frame next() {
    while (true) {
      if (auto frame = in_.next(1 << 20)) {
        return *frame;
      }
      if (read_some(socket_, in_.bytes(), std::chrono::milliseconds(100)) == ReadResult::kEnded) {
        return {};
      }
    }
  }

 private:
  Socket socket_;
  FrameBuffer in_;
};

/// Process 0 in this process, others made by hand.
struct Leader {
  int port = 0;
  std::unique_ptr<ProcessGroup> group;

  explicit Leader(int count, int64_t timeout_ns = 60 * kSecond, int64_t silence_ns = 10 * kSecond) {
    Socket listener = listen_on_loopback(0);
    port = port_of(listener);
    group = make_tcp_rendezvous({.num_processes = count,
                                 .process = 0,
                                 .address = {"127.0.0.1", port},
                                 .listener = std::move(listener),
                                 .token = "right",
                                 .timeout_ns = timeout_ns,
                                 .silence_ns = silence_ns});
  }
};

TEST(TcpRendezvous, NamesAProcessWhoseConnectionEnds) {
  Leader leader(2);
  {
    HandMade other(leader.port, "right", 2, 1);
    EXPECT_EQ(other.next().type, static_cast<uint8_t>(RendezvousMessage::kWelcome));
  }
  EXPECT_EQ(reason_at(*leader.group), "rank 1 (box:7) has ended");
}

TEST(TcpRendezvous, NamesAProcessThatIsSilent) {
  Leader leader(2, 60 * kSecond, kSecond / 2);
  HandMade other(leader.port, "right", 2, 1);
  EXPECT_EQ(reason_at(*leader.group), "rank 1 (box:7) has not answered for 0.5 s");
}

// A rank whose process is stopped.
TEST(TcpRendezvous, WhoDoesNotAnswerIsNotWaitedForLong) {
  Leader leader(3);
  HandMade silent(leader.port, "right", 3, 1);
  HandMade other(leader.port, "right", 3, 2);
  EXPECT_EQ(silent.next().type, static_cast<uint8_t>(RendezvousMessage::kWelcome));
  EXPECT_EQ(other.next().type, static_cast<uint8_t>(RendezvousMessage::kWelcome));
  std::map<int, std::string> answers;
  std::thread asking([&] { answers = leader.group->ask_others("where", std::chrono::seconds(2)); });
  const Frame question = other.next();
  EXPECT_EQ(question.type, static_cast<uint8_t>(RendezvousMessage::kQuestion));
  ByteReader body(question.body);
  const auto asker = body.number<int32_t>();
  const auto request = body.number<uint32_t>();
  EXPECT_EQ(asker, 0);
  EXPECT_EQ(body.text(), "where");
  const auto answer = [&](uint32_t number) {
    return ByteWriter().number(asker).number(number).number(uint8_t{1}).text("there").take();
  };
  other.send(RendezvousMessage::kAnswer, answer(request + 1));  // to no question of ours
  other.send(RendezvousMessage::kAnswer, answer(request));
  asking.join();
  EXPECT_THAT(answers, ElementsAre(Pair(2, "there")));
  other.send(RendezvousMessage::kAnswer, answer(request));  // too late
  other.send(RendezvousMessage::kAnswer, "xy");
  EXPECT_THAT(reason_at(*leader.group), HasSubstr("rank 2 (box:7): a message of another process"));
}

TEST(TcpRendezvous, AnAbortEndsAQuestion) {
  Leader leader(2);
  HandMade other(leader.port, "right", 2, 1);
  EXPECT_EQ(other.next().type, static_cast<uint8_t>(RendezvousMessage::kWelcome));
  std::thread asking(
      [&] { EXPECT_THAT(leader.group->ask_others("where", std::chrono::hours(1)), IsEmpty()); });
  EXPECT_EQ(other.next().type, static_cast<uint8_t>(RendezvousMessage::kQuestion));
  other.send(RendezvousMessage::kAbort, "over");
  asking.join();
}

TEST(TcpRendezvous, NamesAProcessThatDoesNotCome) {
  Leader leader(2, kSecond / 5);
  EXPECT_EQ(reason_at(*leader.group), "rank 1 has not come within 0.2 s");
}

TEST(TcpRendezvous, RefusesProcessesOfOtherRuns) {
  Leader leader(3);
  const auto answer = [&](const std::string& token, int count, int process) {
    HandMade other(leader.port, token, count, process);
    const Frame frame = other.next();
    EXPECT_EQ(frame.type, static_cast<uint8_t>(RendezvousMessage::kRefused));
    EXPECT_EQ(other.next().type, 0);
    return frame.body;
  };
  EXPECT_EQ(answer("wrong", 3, 1), "another run is there");
  EXPECT_EQ(answer("right", 4, 1), "rank 1 counts 4 ranks, and rank 0 3");
  EXPECT_EQ(answer("right", 3, 3), "there is no rank 3 of 3");
  EXPECT_EQ(answer("right", 3, 0), "rank 0 is there already");
  EXPECT_EQ(leader.group->aborted(), std::nullopt);
  EXPECT_THAT(message_of<ConfigError>([&] {
                make_tcp_rendezvous({.num_processes = 3,
                                     .process = 2,
                                     .address = {"127.0.0.1", leader.port},
                                     .token = "wrong"});
              }),
              HasSubstr("refuses rank 2: another run is there"));
}

// A port scanner, a browser, noise: dropped, and nobody else notices.
TEST(TcpRendezvous, BytesOfStrangersLeaveNothingBehind) {
  Leader leader(2);
  std::mt19937 random(11);
  for (int stranger = 0; stranger < 60; ++stranger) {
    const Socket socket = connect_to({"127.0.0.1", leader.port},
                                     std::chrono::steady_clock::now() + std::chrono::seconds(10));
    std::string bytes = stranger % 3 == 0   ? "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                        : stranger % 3 == 1 ? pack_frame(1, "braid rendezvous 1 and nonsense")
                                            : "";
    while (bytes.size() < random() % 5000) {
      bytes += static_cast<char>(random());
    }
    send_all(socket, bytes);
  }
  HandMade other(leader.port, "right", 2, 1);
  EXPECT_EQ(other.next().type, static_cast<uint8_t>(RendezvousMessage::kWelcome));
  EXPECT_EQ(leader.group->aborted(), std::nullopt);
  // One of this run that says nonsense is an error of the run.
  other.send(RendezvousMessage::kPut, "xy");
  EXPECT_THAT(reason_at(*leader.group), HasSubstr("rank 1 (box:7): a message of another process"));
}

TEST(TcpRendezvous, WhereNobodyListensItSaysWhereItWaited) {
  int port = 0;
  {
    const Socket free = listen_on_loopback(0);
    port = port_of(free);
  }
  EXPECT_THAT(message_of<DeviceError>([&] {
                make_tcp_rendezvous({.num_processes = 2,
                                     .process = 1,
                                     .address = {"127.0.0.1", port},
                                     .timeout_ns = kSecond / 5});
              }),
              AllOf(HasSubstr("rank 1 waited 0.2 s for rank 0"),
                    HasSubstr(fmt::format("127.0.0.1, port {}", port))));
}

TEST(TcpRendezvous, WithoutProcess0TheOthersSaySo) {
  LocalProcesses processes(3, 60 * kSecond, kSecond);
  // Its server goes on until the others have gone, or for a few seconds; here they stay.
  std::thread ending([&] { processes.drop(0); });
  EXPECT_THAT(reason_at(processes[1]), HasSubstr("rank 0 ("));
  EXPECT_THAT(reason_at(processes[2]), HasSubstr("rank 0 ("));
  ending.join();
}

TEST(LoneProcess, GathersFromItself) {
  const auto lone = make_lone_process();
  EXPECT_TRUE(lone->leads());
  EXPECT_THAT(lone->all_gather("a", "x"), ElementsAre("x"));
  EXPECT_THAT(lone->gather("a", "y"), ElementsAre("y"));
  EXPECT_EQ(lone->broadcast("a", "z"), "z");
  lone->finish();
  EXPECT_EQ(lone->aborted(), std::nullopt);
}

}  // namespace
}  // namespace braid
