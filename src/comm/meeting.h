#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/comm_call.h"
#include "comm/row_exchange.h"
#include "ir/program.h"

namespace braid {

/// The state that the ranks of one group share for its collectives, or the two ends of one channel
/// for its messages, call after call. In a call all parties arrive, each does its share of the
/// work, and all leave together, because until then others may use their buffers.
struct Meeting {
  /// For the collectives of the call's group, or for the messages between its two members on its
  /// channel. `member` is the caller's index in the group.
  Meeting(const CommCall& call, size_t member);

  const Group group;
  const bool is_channel;
  const int64_t channel;
  const std::vector<int> ranks;  ///< the parties: members in group order, or source, destination

  std::vector<const CommCall*> calls;     ///< by party: null if it has not arrived
  std::vector<const std::byte*> sources;  ///< x by party, of the current call
  std::vector<std::byte*> targets;        ///< y by party
  std::vector<RowsOfMember> rows;         ///< x by party, of calls that exchange rows
  size_t num_arrived = 0;
  size_t num_busy = 0;   ///< parties that may still touch the buffers of the others
  int64_t num_met = 0;   ///< calls in which all parties arrived with calls that fit together
  int64_t due_ns = 0;    ///< when the data of that call arrives over its links
  std::string mismatch;  ///< why call num_met + 1 is impossible
  std::condition_variable changed;

  /// Names the group or channel: "group data", or "group pipeline, channel 2 from rank 0 to rank
  /// 3".
  std::string place() const;
  /// Names a call: "call 3", or "message 3".
  std::string number(int64_t call) const;
  /// "group data, call 1: rank 0 asks for ..., but rank 1 for ..."; empty if all calls fit
  /// together.
  std::string find_mismatch() const;
  /// All parties have arrived: stores the addresses of their buffers.
  void take_buffers();
  /// Does the party's share of the current call. All parties call it, concurrently.
  void do_share(size_t party) const;
};

/// The party of its meeting that is `member` of the call's group.
size_t party_of(const CommCall& call, size_t member);

/// Whether the call belongs to the meeting.
bool meets_in(const Meeting& meeting, const CommCall& call, size_t member);

}  // namespace braid
