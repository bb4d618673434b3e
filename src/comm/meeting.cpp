#include "comm/meeting.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "comm/reduce.h"

namespace braid {
namespace {

struct Ends {
  int source;
  int destination;
};

Ends ends_of(const CommCall& call, size_t member) {
  const int self = call.group->ranks[member];
  const int peer = call.group->ranks[static_cast<size_t>(call.peer)];
  return call.op == CommOp::kSend ? Ends{self, peer} : Ends{peer, self};
}

std::vector<int> parties(const CommCall& call, size_t member) {
  if (!call.is_message()) {
    return call.group->ranks;
  }
  const Ends ends = ends_of(call, member);
  return {ends.source, ends.destination};
}

/// The data of one call of a meeting; each party does a share of the work. Every party writes its
/// own y from the others' x; of sums that all need, each computes a slice.
class Share {
 public:
  Share(const Meeting& meeting, size_t party)
      : meeting_(meeting), call_(*meeting.calls[party]), party_(party) {}

  void run() const {
    switch (call_.op) {
      case CommOp::kAllReduce:
      case CommOp::kAllReduceMax:
        return sum_slice(meeting_.targets);
      case CommOp::kReduce:
        return reduce();
      case CommOp::kReduceScatter:
        return sum({.sources = meeting_.sources,
                    .targets = own_target(),
                    .begin = index() * call_.recv_elems,
                    .count = call_.recv_elems});
      case CommOp::kAllGather:
        return for_each_member([&](size_t i) {
          copy(meeting_.sources[i], 0, static_cast<int64_t>(i) * call_.send_elems,
               call_.send_elems);
        });
      case CommOp::kAllToAll:
        return for_each_member([&](size_t i) {
          const int64_t block = call_.send_elems / size();
          copy(meeting_.sources[i], index() * block, static_cast<int64_t>(i) * block, block);
        });
      case CommOp::kBroadcast:
        return copy(meeting_.sources[static_cast<size_t>(call_.root)], 0, 0, call_.recv_elems);
      case CommOp::kRingShift:
        return copy(meeting_.sources[shifted_member()], 0, 0, call_.recv_elems);
      case CommOp::kRecv:
        return copy(meeting_.sources[0], 0, 0, call_.recv_elems);
      case CommOp::kDispatchRows:
      case CommOp::kCombineRows:
        return exchange_rows(call_, party_, meeting_.rows);
      case CommOp::kSend:
        return;
    }
  }

 private:
  int64_t size() const { return static_cast<int64_t>(meeting_.calls.size()); }
  int64_t index() const { return static_cast<int64_t>(party_); }
  size_t elem_bytes() const { return dtype_bytes(call_.dtype); }
  std::span<std::byte* const> own_target() const { return {&meeting_.targets[party_], 1}; }

  /// Starts with the members after this one, so that not all parties read one rank's memory at
  /// once.
  template <class Visit>
  void for_each_member(Visit&& visit) const {
    for (int64_t i = 0; i < size(); ++i) {
      visit(static_cast<size_t>((index() + i) % size()));
    }
  }

  size_t shifted_member() const {
    const int64_t from = (index() - call_.shift % size()) % size();
    return static_cast<size_t>(from < 0 ? from + size() : from);
  }

  void copy(const std::byte* source, int64_t from, int64_t to, int64_t num_elems) const {
    const std::byte* const x = source + static_cast<size_t>(from) * elem_bytes();
    std::byte* const y = call_.recv + static_cast<size_t>(to) * elem_bytes();
    if (x != y && num_elems > 0) {
      std::memcpy(y, x, static_cast<size_t>(num_elems) * elem_bytes());
    }
  }

  void sum(Summation summation) const {
    summation.dtype = call_.dtype;
    summation.takes_largest = call_.op == CommOp::kAllReduceMax;
    sum_elems(summation);
  }

  void sum_slice(std::span<std::byte* const> targets) const {
    const ReduceSlice slice =
        reduce_slice(call_.send_elems, call_.dtype, party_, meeting_.calls.size());
    sum({.sources = meeting_.sources,
         .targets = targets,
         .begin = slice.begin,
         .count = slice.end - slice.begin,
         .target_begin = slice.begin});
  }

  void reduce() const {
    sum_slice({&meeting_.targets[static_cast<size_t>(call_.root)], 1});
    if (index() != call_.root && call_.recv_elems > 0) {
      std::memset(call_.recv, 0, static_cast<size_t>(call_.num_bytes()));
    }
  }

  const Meeting& meeting_;
  const CommCall& call_;
  size_t party_;
};

}  // namespace

Meeting::Meeting(const CommCall& call, size_t member)
    : group(*call.group),
      is_channel(call.is_message()),
      channel(call.channel),
      ranks(parties(call, member)),
      calls(ranks.size()),
      sources(ranks.size()),
      targets(ranks.size()),
      rows(ranks.size()) {}

std::string Meeting::place() const {
  if (!is_channel) {
    return fmt::format("group {}", group.name);
  }
  return fmt::format("group {}, channel {} from rank {} to rank {}", group.name, channel, ranks[0],
                     ranks[1]);
}

std::string Meeting::number(int64_t call) const {
  return fmt::format("{} {}", is_channel ? "message" : "call", call);
}

std::string Meeting::find_mismatch() const {
  for (size_t i = 1; i < calls.size(); ++i) {
    if (!fit_together(*calls[0], *calls[i])) {
      return fmt::format("{}, {}: rank {} asks for {}, but rank {} for {}", place(),
                         number(num_met + 1), ranks[0], describe_call(*calls[0]), ranks[i],
                         describe_call(*calls[i]));
    }
  }
  return {};
}

void Meeting::take_buffers() {
  for (size_t i = 0; i < calls.size(); ++i) {
    sources[i] = calls[i]->send;
    targets[i] = calls[i]->recv;
    rows[i] = rows_given(*calls[i]);
  }
}

void Meeting::do_share(size_t party) const {
  Share(*this, party).run();
}

size_t party_of(const CommCall& call, size_t member) {
  return call.is_message() ? (call.op == CommOp::kSend ? 0 : 1) : member;
}

bool meets_in(const Meeting& meeting, const CommCall& call, size_t member) {
  if (meeting.is_channel != call.is_message() || meeting.group.name != call.group->name ||
      meeting.group.ranks != call.group->ranks) {
    return false;
  }
  if (!meeting.is_channel) {
    return true;
  }
  const Ends ends = ends_of(call, member);
  return meeting.channel == call.channel && meeting.ranks[0] == ends.source &&
         meeting.ranks[1] == ends.destination;
}

}  // namespace braid
