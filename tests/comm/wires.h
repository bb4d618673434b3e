#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/comm_fixture.h"
#include "comm/process_group.h"
#include "comm/tcp/socket_transport.h"
#include "comm/tcp/tcp_rendezvous.h"

namespace braid {

/// What connects the ranks of a test: all keep the contract of Transport.
enum class Wire { kThreads, kSockets };

inline std::string wire_name(const testing::TestParamInfo<Wire>& info) {
  return info.param == Wire::kThreads ? "Threads" : "Sockets";
}

/// Process groups of `count` ends in this process, connected over TCP. Ends in reverse, so that the
/// one that serves is the last.
class LocalProcesses {
 public:
  explicit LocalProcesses(int count, int64_t timeout_ns = 60'000'000'000,
                          int64_t silence_ns = 10'000'000'000)
      : groups_(static_cast<size_t>(count)) {
    Socket listener = listen_on_loopback(0);
    const int port = port_of(listener);
    const auto errors = on_threads(count, [&](int i) {
      groups_[static_cast<size_t>(i)] =
          make_tcp_rendezvous({.num_processes = count,
                               .process = i,
                               .address = {"127.0.0.1", port},
                               .listener = i == 0 ? std::move(listener) : Socket(),
                               .run = "a test",
                               .secret = "of a test",
                               .timeout_ns = timeout_ns,
                               .silence_ns = silence_ns});
    });
    EXPECT_THAT(errors, testing::Each(""));
  }
  ~LocalProcesses() {
    while (!groups_.empty()) {
      groups_.pop_back();
    }
  }
  LocalProcesses(const LocalProcesses&) = delete;
  LocalProcesses& operator=(const LocalProcesses&) = delete;

  ProcessGroup& operator[](int i) { return *groups_[static_cast<size_t>(i)]; }
  /// Ends one of them without a goodbye of the run.
  void drop(int i) { groups_[static_cast<size_t>(i)].reset(); }

 private:
  std::vector<std::unique_ptr<ProcessGroup>> groups_;
};

/// A transport with the process groups under it.
class SocketRank : public Transport {
 public:
  SocketRank(std::shared_ptr<LocalProcesses> processes, std::unique_ptr<Transport> transport)
      : processes_(std::move(processes)), transport_(std::move(transport)) {}

  void prepare(const CommCall& call) override { transport_->prepare(call); }
  void run(const CommCall& call) override { transport_->run(call); }
  void abort(const std::string& reason) override { transport_->abort(reason); }
  void end_step() override { transport_->end_step(); }
  std::optional<std::string> overdue() const override { return transport_->overdue(); }
  std::optional<Abort> aborted() const override { return transport_->aborted(); }

 private:
  std::shared_ptr<LocalProcesses> processes_;
  std::unique_ptr<Transport> transport_;
};

inline Transports make_transports(Wire wire, const InProcessOptions& options) {
  if (wire == Wire::kThreads) {
    return make_in_process_transports(options);
  }
  const auto processes = std::make_shared<LocalProcesses>(options.num_ranks);
  Transports transports(static_cast<size_t>(options.num_ranks));
  const auto errors = on_threads(options.num_ranks, [&](int rank) {
    transports[static_cast<size_t>(rank)] = std::make_unique<SocketRank>(
        processes, make_socket_transport(
                       {.processes = &(*processes)[rank], .timeout_ns = options.timeout_ns}));
  });
  EXPECT_THAT(errors, testing::Each(""));
  return transports;
}

}  // namespace braid
