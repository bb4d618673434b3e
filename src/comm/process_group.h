#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/rendezvous.h"

namespace braid {

/// The processes of a run, as seen by one of them: communication between hosts outside the programs
/// of the ranks. All processes make the calls of a name in the same order. A call waits for the
/// other processes without a timeout, and throws AbortedError if the run is aborted. At most 1 GiB
/// of bytes.
class ProcessGroup : public Rendezvous {
 public:
  virtual int size() const = 0;
  /// The index of this process. Process 0 is the leader: it prints, and writes the files that exist
  /// once per run.
  virtual int index() const = 0;
  bool leads() const { return index() == 0; }
  /// The name or address at which the other processes reach this host.
  virtual std::string host() const = 0;

  /// 32 bytes that only the processes of this run can compute, if the run has a secret.
  virtual std::string secret_for(std::string_view purpose) const = 0;

  /// Returns the bytes of each process, by process.
  virtual std::vector<std::string> all_gather(std::string_view name, std::string bytes) = 0;
  /// Like all_gather at process 0; returns nothing elsewhere.
  virtual std::vector<std::string> gather(std::string_view name, std::string bytes) = 0;
  /// Returns the bytes of process 0.
  std::string broadcast(std::string_view name, std::string bytes);
  void barrier(std::string_view name) { all_gather(name, {}); }

  /// The run has ended successfully: waits for all processes. After this the end of a process is
  /// not a failure.
  virtual void finish() = 0;
  /// Whether process 0 cannot report to the user, because it has ended or does not answer.
  virtual bool leader_is_lost() const = 0;
};

/// A group of one process that holds all ranks.
std::unique_ptr<ProcessGroup> make_lone_process();

}  // namespace braid
