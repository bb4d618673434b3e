#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/comm_call.h"
#include "ir/program.h"

namespace braid {

/// Where the ranks of one group meet for collectives, or the two ends of one channel for messages,
/// call after call. In a call all parties arrive; each does its share; all leave together, because
/// until then others may use their buffers.
struct Meeting {
  /// Of the collectives of the call's group, or of the messages between its two members on its
  /// channel. `member` is the caller's place in the group.
  Meeting(const CommCall& call, size_t member);

  const Group group;
  const bool is_channel;
  const int64_t channel;
  const std::vector<int> ranks;  ///< the parties: members in group order, or source, destination

  std::vector<const CommCall*> calls;     ///< by party: null if it is not here
  std::vector<const std::byte*> sources;  ///< x by party, of the call that all are in
  std::vector<std::byte*> targets;        ///< y by party
  size_t num_arrived = 0;
  size_t num_busy = 0;   ///< parties that may still touch the buffers of the others
  int64_t num_met = 0;   ///< calls in which all parties arrived and fitted together
  int64_t due_ns = 0;    ///< when the data of that call has crossed its links
  std::string mismatch;  ///< why call num_met + 1 cannot happen
  std::condition_variable changed;

  /// Who meets here: "group data", or "group pipeline, channel 2 from rank 0 to rank 3".
  std::string place() const;
  /// Which of its calls: "call 3", or "message 3".
  std::string number(int64_t call) const;
  /// "group data, call 1: rank 0 asks for ..., but rank 1 for ..."; empty if all calls fit
  /// together.
  std::string find_mismatch() const;
  /// All parties are here: takes their buffers.
  void take_buffers();
  /// The party's share of the call that all are in: to be called by each, at the same time.
  void do_share(size_t party) const;
};

/// Which party of its meeting the `member` of the call's group is.
size_t party_of(const CommCall& call, size_t member);

/// Whether such a call belongs to that meeting.
bool meets_in(const Meeting& meeting, const CommCall& call, size_t member);

}  // namespace braid
