

#include "base/byte_fields.h"
#include "base/text.h"
#include "comm/tcp/connect.h"
#include "comm/tcp/frame.h"
#include "comm/tcp/handshake.h"
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

/// What a test's process says when it enters.
struct Said {
  std::string run = "right";
  int count = 2;
  int process = 1;
  std::string name = "box:7";
  std::string build = "b1";
};

/// A client that speaks the protocol by hand, as far as a test wants.
class HandMade {
 public:
  HandMade(int port, const Said& said, const std::string& secret = "a secret")
      : entry_(enter({.address = {"127.0.0.1", port},
                      .key = {.magic = std::string(kRendezvousMagic), .secret = secret},
                      .hello = ByteWriter()
                                   .text(said.run)
                                   .text(said.build)
                                   .number(said.count)
                                   .number(said.process)
                                   .text(said.name)
                                   .take()},
                     std::chrono::steady_clock::now() + std::chrono::seconds(10))) {}
  void send(RendezvousMessage type, const std::string& body) {
    send_all(entry_.socket, pack_frame(static_cast<uint8_t>(type), body));
  }
  /// Type and body of the next frame; type 0 at the end.
  Frame next() {
    while (true) {
      if (auto frame = entry_.in.next(1 << 20)) {
        return *frame;
      }
      if (read_some(entry_.socket, entry_.in.bytes(), std::chrono::milliseconds(100)) ==
          ReadResult::kEnded) {
        return {};
      }
    }
  }

 private:
  Entry entry_;
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
                                 .run = "right",
                                 .build = "b1",
                                 .secret = "a secret",
                                 .timeout_ns = timeout_ns,
                                 .silence_ns = silence_ns});
  }
};

TEST(TcpRendezvous, NamesAProcessWhoseConnectionEnds) {
  Leader leader(2);
  { HandMade other(leader.port, {.count = 2, .process = 1}); }
  EXPECT_EQ(reason_at(*leader.group), "rank 1 (box:7) has ended");
}

TEST(TcpRendezvous, NamesAProcessThatIsSilent) {
  Leader leader(2, 60 * kSecond, kSecond / 2);
  HandMade other(leader.port, {.count = 2, .process = 1});
  EXPECT_EQ(reason_at(*leader.group), "rank 1 (box:7) has not answered for 0.5 s");
}

// A rank whose process is stopped.
TEST(TcpRendezvous, WhoDoesNotAnswerIsNotWaitedForLong) {
  Leader leader(3);
  HandMade silent(leader.port, {.count = 3, .process = 1});
  HandMade other(leader.port, {.count = 3, .process = 2});
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
  HandMade other(leader.port, {.count = 2, .process = 1});
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
  const auto answer = [&](const Said& said, const std::string& secret = "a secret") {
    return message_of<ConfigError>([&] { HandMade(leader.port, said, secret); });
  };
  EXPECT_EQ(answer({.count = 3}, "another"),
            "another run is there: it has another secret; give all processes the same");
  EXPECT_EQ(answer({.run = "wrong\n", .count = 3}), "run \"right\" is there, not \"wrong\\u000A\"");
  EXPECT_EQ(answer({.count = 4}), "rank 1 counts 4 ranks, and rank 0 3");
  EXPECT_EQ(answer({.count = 3, .process = 3}), "there is no rank 3 of 3");
  EXPECT_EQ(answer({.count = 3, .process = 0}), "rank 0 is there already");
  EXPECT_EQ(leader.group->aborted(), std::nullopt);
  EXPECT_THAT(message_of<ConfigError>([&] {
                make_tcp_rendezvous({.num_processes = 3,
                                     .process = 2,
                                     .address = {"127.0.0.1", leader.port},
                                     .run = "right",
                                     .secret = "wrong"});
              }),
              HasSubstr("refuses rank 2: another run is there: it has another secret"));
}

TEST(TcpRendezvous, RefusesOtherBuilds) {
  Leader leader(2);
  EXPECT_EQ(message_of<ConfigError>([&] { HandMade(leader.port, {.build = "b2\x07"}); }),
            fmt::format("rank 1 (box:7) runs build b2\\u0007 of braid, and rank 0 ({}) build b1; "
                        "start the same file on all hosts",
                        process_name()));
  EXPECT_EQ(leader.group->aborted(), std::nullopt);
}

TEST(TcpRendezvous, NoTextOfAnotherProcessReachesTheTerminalAsItIs) {
  Leader leader(2);
  { HandMade other(leader.port, {.name = "\x1b[2Jbox\n" + std::string(1000, 'x')}); }
  EXPECT_EQ(reason_at(*leader.group),
            fmt::format("rank 1 (\\u001B[2Jbox\\u000A{}...) has ended", std::string(92, 'x')));
  // A stranger at the address of process 0 that refuses everybody.
  const Socket listener = listen_on_loopback(0);
  std::thread stranger([&] {
    std::optional<Socket> socket;
    while (!(socket = accept_from(listener))) {
    }
    send_all(*socket, pack_frame(static_cast<uint8_t>(HandshakeMessage::kRefused),
                                 "\x1b]0;owned\x07\r\n" + std::string(1000, 'y')));
    std::string ignored;
    while (read_some(*socket, ignored, std::chrono::seconds(1)) != ReadResult::kEnded) {
    }
  });
  const std::string message = message_of<ConfigError>([&] {
    make_tcp_rendezvous(
        {.num_processes = 2, .process = 1, .address = {"127.0.0.1", port_of(listener)}});
  });
  stranger.join();
  EXPECT_THAT(message, HasSubstr("refuses rank 1: \\u001B]0;owned\\u0007\\u000D\\u000Ayyy"));
  EXPECT_TRUE(is_printable(message));
  EXPECT_LT(message.size(), 400u);
}

TEST(TcpRendezvous, TheListenerEndsWhenAllAreThere) {
  Leader leader(3);
  HandMade first(leader.port, {.count = 3, .process = 1});
  {
    const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    EXPECT_NO_THROW(connect_to({"127.0.0.1", leader.port}, soon)) << "one is missing";
  }
  HandMade second(leader.port, {.count = 3, .process = 2});
  EXPECT_THAT(message_of<DeviceError>([&] {
                connect_to({"127.0.0.1", leader.port}, std::chrono::steady_clock::now());
              }),
              HasSubstr("Connection refused"));
}

TEST(TcpRendezvous, NeedsASecretWhereOthersCanConnect) {
  EXPECT_THAT(message_of<InternalError>([] {
                make_tcp_rendezvous({.num_processes = 2, .process = 0, .address = {"box", 1}});
              }),
              HasSubstr("no secret for a run at box"));
}

// A port scanner, a browser, noise: dropped, and nobody else notices.
TEST(TcpRendezvous, BytesOfStrangersLeaveNothingBehind) {
  Leader leader(2);
  std::mt19937 random(11);
  for (int stranger = 0; stranger < 60; ++stranger) {
    const Socket socket = connect_to({"127.0.0.1", leader.port},
                                     std::chrono::steady_clock::now() + std::chrono::seconds(10));
    std::string bytes = stranger % 3 == 0 ? "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                        : stranger % 3 == 1
                            ? pack_frame(1, std::string(kRendezvousMagic) + " and nonsense")
                            : "";
    while (bytes.size() < random() % 5000) {
      bytes += static_cast<char>(random());
    }
    send_all(socket, bytes);
  }
  HandMade other(leader.port, {.count = 2, .process = 1});
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
