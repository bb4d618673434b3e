#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/tcp/frame.h"
#include "comm/tcp/rendezvous_protocol.h"

namespace braid {

/// What the server of a rendezvous knows and answers, without connections: the values that
/// processes put, their requests, and why the run was aborted.
class RendezvousBoard {
 public:
  explicit RendezvousBoard(int num_processes) : processes_(static_cast<size_t>(num_processes)) {}

  bool has_come(int process) const { return at(process).has_come; }
  bool has_left(int process) const { return at(process).has_left; }
  /// The first process that has not come yet; nullopt once all have.
  std::optional<int> missing() const;

  /// The process has come; `welcome` is the first frame for it.
  void come(int process, std::string welcome);
  /// Takes a message of a process that has come and not left. Throws DeviceError for one that no
  /// process sends.
  void take(int process, const Frame& frame);
  /// Nothing is for it any more.
  void leave(int process);
  /// Tells all processes. The first reason stays.
  void abort(const std::string& why);
  const std::optional<std::string>& reason() const { return reason_; }

  /// Bytes for a process; the caller removes what it has sent.
  std::string& out(int process) { return at(process).out; }

 private:
  struct Process {
    bool has_come = false;
    bool has_left = false;
    std::string out;
  };
  /// A request that waits for its reply.
  struct Asker {
    int process = 0;
    uint32_t request = 0;
  };
  struct Gathering {
    std::map<int, std::string> given;  // by process
    std::vector<Asker> askers;
    bool for_all = false;
  };

  Process& at(int process) { return processes_[static_cast<size_t>(process)]; }
  const Process& at(int process) const { return processes_[static_cast<size_t>(process)]; }
  void say(int process, RendezvousMessage type, std::string_view body);
  void answer(Asker asker, std::string_view bytes);
  void put(int from, const Frame& frame);
  void get(int from, const Frame& frame);
  void gather(int from, const Frame& frame);
  void finish(const Gathering& all);
  void forward_question(int from, const Frame& frame);
  void forward_answer(int from, const Frame& frame);

  std::vector<Process> processes_;
  std::map<std::string, std::string> values_;
  std::multimap<std::string, Asker> waiting_;  // for a value, by key
  std::map<std::string, Gathering> gatherings_;
  std::optional<std::string> reason_;
};

}  // namespace braid
