#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm_call.h"
#include "comm/meeting.h"
#include "comm/tcp/remote_call.h"

namespace braid {

/// A meeting of which this process has one party; the calls of the others come in as RemoteCalls,
/// at any time. Not thread-safe.
class RemoteMeeting {
 public:
  /// As Meeting; `call` may be that of another party.
  RemoteMeeting(const CommCall& call, size_t member)
      : meeting_(call, member), given_(meeting_.ranks.size()) {}

  const Meeting& meeting() const { return meeting_; }
  Meeting& meeting() { return meeting_; }

  /// This process's party begins its next call, which must outlive it. Throws InternalError if it
  /// is in one.
  void open(size_t party, const CommCall& call);
  /// It has ended, or failed.
  void close();

  /// A call of another party. Returns whether the call that is open has waited for it.
  bool add(size_t party, std::unique_ptr<RemoteCall> remote);

  /// Whether the calls of all parties are here for the one that is open.
  bool all_here() const;
  /// Takes those of the others, once they have met: by party, null for this process's `party`.
  /// Throws InternalError if one has another number than the meeting counts.
  std::vector<std::unique_ptr<RemoteCall>> take(size_t party);

 private:
  void look();

  Meeting meeting_;
  /// By party: its calls that this rank has not been in yet. A party is ahead by one at most.
  std::vector<std::deque<std::unique_ptr<RemoteCall>>> given_;
  bool is_open_ = false;
};

/// Equal for the meetings of calls that meet, and for no others.
std::string meeting_key(const Meeting& meeting);

}  // namespace braid
