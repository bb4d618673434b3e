#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/rendezvous.h"

namespace braid {

/// The processes of a run, as one of them sees them: what their hosts tell each other outside the
/// programs of the ranks. Calls of a name are made by all processes, in one order; they wait for
/// the others, however long those take, and throw AbortedError once the run was aborted. Bytes of
/// up to 1 GiB.
class ProcessGroup : public Rendezvous {
 public:
  virtual int size() const = 0;
  /// Of this process: 0 leads (it prints, and writes what there is one of).
  virtual int index() const = 0;
  bool leads() const { return index() == 0; }
  /// Name or address under which the other processes reach this host.
  virtual std::string host() const = 0;

  /// What each process gave, by process.
  virtual std::vector<std::string> all_gather(std::string_view name, std::string bytes) = 0;
  /// The same at process 0; nothing elsewhere.
  virtual std::vector<std::string> gather(std::string_view name, std::string bytes) = 0;
  /// What process 0 gave.
  std::string broadcast(std::string_view name, std::string bytes);
  void barrier(std::string_view name) { all_gather(name, {}); }

  /// The run has ended well: waits for all. From here on the end of a process is no failure.
  virtual void finish() = 0;
  /// Whether process 0 cannot tell the user what has happened, because it has ended itself or does
  /// not answer.
  virtual bool leader_is_lost() const = 0;
};

/// One process that holds all ranks.
std::unique_ptr<ProcessGroup> make_lone_process();

}  // namespace braid
