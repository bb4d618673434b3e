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

/// A meeting with one party in this process; the calls of the others arrive as RemoteCalls, at any
/// time. Not thread-safe.
class RemoteMeeting {
 public:
  /// As Meeting; `call` may be that of another party.
  RemoteMeeting(const CommCall& call, size_t member)
      : meeting_(call, member), given_(meeting_.ranks.size()) {}

  const Meeting& meeting() const { return meeting_; }
  Meeting& meeting() { return meeting_; }

  /// This process's party begins its next call, which must outlive it. Throws InternalError if a
  /// call is already open.
  void open(size_t party, const CommCall& call);
  /// The open call has ended or failed.
  void close();

  /// Adds a call of another party. Returns whether the open call was waiting for it.
  bool add(size_t party, std::unique_ptr<RemoteCall> remote);

  /// Whether the calls of all parties have arrived for the open call.
  bool all_here() const;
  /// Removes and returns the other parties' calls, after they have all arrived: by party, null for
  /// this process's `party`. Throws InternalError if the number of a call differs from the
  /// meeting's count.
  std::vector<std::unique_ptr<RemoteCall>> take(size_t party);

 private:
  void look();

  Meeting meeting_;
  /// By party: its calls in which this rank has not taken part yet. A party is at most one call
  /// ahead.
  std::vector<std::deque<std::unique_ptr<RemoteCall>>> given_;
  bool is_open_ = false;
};

/// A key that identifies the meeting: equal exactly for calls of one meeting.
std::string meeting_key(const Meeting& meeting);

}  // namespace braid
