#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "comm/reduce.h"
#include "comm/transport.h"

namespace braid {
namespace {

constexpr int64_t kLongestTimeoutNs =
    int64_t{365} * 24 * 3600 * 1'000'000'000;  // now + timeout must not overflow

/// What one rank asks for in one call.
struct Call {
  void* data = nullptr;
  int64_t num_elems = 0;
  DType dtype = DType::kF32;
  std::string what;
};

/// "all_reduce of 128 f32 (layers.3)"; equal for calls that fit together.
std::string describe(const Call& call) {
  return fmt::format("all_reduce of {} {} ({})", call.num_elems, dtype_name(call.dtype), call.what);
}

bool fit_together(const Call& a, const Call& b) {
  return a.num_elems == b.num_elems && a.dtype == b.dtype && a.what == b.what;
}

/// The call that a rank began last, in any group: what is said about a rank that is missing.
struct LedgerEntry {
  int64_t num_calls = 0;  ///< of this rank in all groups
  int64_t sequence = 0;   ///< in its group, counted from 1
  std::string group;
  std::string call;
  bool finished = false;
};

/// Where the ranks of one group meet, call after call. In a call all arrive; each sums its slice of
/// all buffers; all leave together, because until then others write into their buffers.
struct Meeting {
  explicit Meeting(const Group& of) : group(of), calls(of.ranks.size()), inside(of.ranks.size()) {}

  const Group group;
  std::vector<Call> calls;     ///< by member, the current or last one
  std::vector<char> inside;    ///< by member: is in a call
  std::vector<void*> buffers;  ///< of the call that is being summed
  size_t num_arrived = 0;
  size_t num_summing = 0;  ///< members that may still touch the buffers of the others
  int64_t num_met = 0;     ///< calls in which all members arrived and fitted together
  std::string mismatch;    ///< why call num_met + 1 cannot happen
  std::condition_variable changed;
};

/// What the ranks share. One mutex guards it all, but nobody holds it while summing.
class Hub {
 public:
  explicit Hub(const InProcessOptions& options)
      : timeout_ns_(std::min(options.timeout_ns, kLongestTimeoutNs)),
        ledger_(static_cast<size_t>(options.num_ranks)) {}

  void all_reduce(int rank, const Group& group, Call call);
  void abort(const std::string& reason);

 private:
  using Lock = std::unique_lock<std::mutex>;

  size_t member_index(int rank, const Group& group) const;
  Meeting& meeting_of(const Group& group);
  void arrive(Lock& lock, Meeting& meeting, size_t member);
  void meet(Meeting& meeting);
  void leave(Lock& lock, Meeting& meeting);
  void abort_locked(const std::string& reason);
  std::string missing_message(const Meeting& meeting, size_t member) const;
  std::string last_call(int rank) const;

  const int64_t timeout_ns_;
  std::mutex mutex_;
  bool aborted_ = false;
  std::string reason_;
  std::vector<LedgerEntry> ledger_;  // by rank
  std::map<std::pair<std::string, std::vector<int>>, std::unique_ptr<Meeting>> meetings_;
};

size_t Hub::member_index(int rank, const Group& group) const {
  const size_t none = group.ranks.size();
  size_t index = none;
  for (size_t i = 0; i < group.ranks.size(); ++i) {
    const int member = group.ranks[i];
    check(member >= 0 && member < static_cast<int>(ledger_.size()), "group {} has rank {} of {}",
          group.name, member, ledger_.size());
    if (member == rank) {
      check(index == none, "group {} has rank {} twice", group.name, rank);
      index = i;
    }
  }
  check(index != none, "rank {} is not in group {}", rank, group.name);
  return index;
}

Meeting& Hub::meeting_of(const Group& group) {
  std::unique_ptr<Meeting>& meeting = meetings_[{group.name, group.ranks}];
  if (!meeting) {
    meeting = std::make_unique<Meeting>(group);
  }
  return *meeting;
}

/// Marks a member as inside its group's call. Made and destroyed under the hub's mutex.
class Presence {
 public:
  Presence(Meeting& meeting, size_t member) : flag_(meeting.inside[member]) { flag_ = 1; }
  ~Presence() { flag_ = 0; }
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

 private:
  char& flag_;
};

void Hub::all_reduce(int rank, const Group& group, Call call) {
  check(can_sum(call.dtype), "{} in group {}: no sum of this dtype", describe(call), group.name);
  const size_t member = member_index(rank, group);
  const DType dtype = call.dtype;
  const ReduceSlice slice = reduce_slice(call.num_elems, dtype, member, group.ranks.size());

  Lock lock(mutex_);
  if (aborted_) {
    throw AbortedError(reason_);
  }
  Meeting& meeting = meeting_of(group);
  check(!meeting.inside[member], "rank {} is in two calls of group {} at once: {} and {}", rank,
        group.name, describe(meeting.calls[member]), describe(call));
  LedgerEntry& entry = ledger_[static_cast<size_t>(rank)];
  const int64_t number = entry.num_calls + 1;
  entry = {number, meeting.num_met + 1, group.name, describe(call), false};
  if (group.ranks.size() == 1) {  // the sum is there, and nobody minds the order of such calls
    ++meeting.num_met;
    entry.finished = true;
    return;
  }
  const Presence presence(meeting, member);
  meeting.calls[member] = std::move(call);
  arrive(lock, meeting, member);
  if (!aborted_) {
    lock.unlock();
    sum_slice(meeting.buffers, slice, dtype);
    lock.lock();
  }
  leave(lock, meeting);
  if (entry.num_calls == number) {  // else another stream of this rank began a call meanwhile
    entry.finished = true;
  }
}

/// Returns when all members are in this call and nothing but their sums is left to do. Each of them
/// must then `leave`.
void Hub::arrive(Lock& lock, Meeting& meeting, size_t member) {
  const int64_t sequence = meeting.num_met + 1;
  if (++meeting.num_arrived == meeting.calls.size()) {
    meet(meeting);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns_);
  const bool in_time = meeting.changed.wait_until(
      lock, deadline, [&] { return meeting.num_met == sequence || aborted_; });
  if (meeting.num_met == sequence) {
    return;
  }
  if (!meeting.mismatch.empty()) {
    throw DeviceError(meeting.mismatch);
  }
  if (in_time) {
    throw AbortedError(reason_);
  }
  const std::string message = missing_message(meeting, member);
  abort_locked(message);
  throw DeviceError(message);
}

void Hub::meet(Meeting& meeting) {
  for (size_t i = 1; i < meeting.calls.size(); ++i) {
    if (!fit_together(meeting.calls[0], meeting.calls[i])) {
      meeting.mismatch = fmt::format("group {}, call {}: rank {} asks for {}, but rank {} for {}",
                                     meeting.group.name, meeting.num_met + 1,
                                     meeting.group.ranks[0], describe(meeting.calls[0]),
                                     meeting.group.ranks[i], describe(meeting.calls[i]));
      return abort_locked(meeting.mismatch);
    }
  }
  meeting.buffers.clear();
  for (const Call& call : meeting.calls) {
    meeting.buffers.push_back(call.data);
  }
  meeting.num_arrived = 0;
  meeting.num_summing = meeting.calls.size();
  ++meeting.num_met;
  meeting.changed.notify_all();
}

/// Waits, for as long as a sum takes, until nobody touches the buffers of this call any more.
void Hub::leave(Lock& lock, Meeting& meeting) {
  if (--meeting.num_summing == 0) {
    meeting.changed.notify_all();
  }
  meeting.changed.wait(lock, [&] { return meeting.num_summing == 0; });
  if (aborted_) {  // perhaps before some member had summed its slice
    throw AbortedError(reason_);
  }
}

void Hub::abort(const std::string& reason) {
  const Lock lock(mutex_);
  abort_locked(reason);
}

void Hub::abort_locked(const std::string& reason) {
  if (aborted_) {
    return;
  }
  aborted_ = true;
  reason_ = reason;
  for (const auto& [key, meeting] : meetings_) {
    meeting->changed.notify_all();
  }
}

std::string Hub::missing_message(const Meeting& meeting, size_t member) const {
  const Group& group = meeting.group;
  std::string ranks;
  std::string ledgers;
  size_t num_missing = 0;
  for (size_t i = 0; i < group.ranks.size(); ++i) {
    if (!meeting.inside[i]) {
      ++num_missing;
      ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", group.ranks[i]);
      ledgers += fmt::format("; rank {}: {}", group.ranks[i], last_call(group.ranks[i]));
    }
  }
  return fmt::format("rank {} waited {} s in group {}, call {}, {}, for rank{} {}{}",
                     group.ranks[member], static_cast<double>(timeout_ns_) * 1e-9, group.name,
                     meeting.num_met + 1, describe(meeting.calls[member]),
                     num_missing == 1 ? "" : "s", ranks, ledgers);
}

std::string Hub::last_call(int rank) const {
  const LedgerEntry& entry = ledger_[static_cast<size_t>(rank)];
  if (entry.num_calls == 0) {
    return "no call yet";
  }
  return fmt::format("last call {} in group {}, call {}, {}", entry.call, entry.group,
                     entry.sequence, entry.finished ? "finished" : "still waiting");
}

/// One rank's end of the hub.
class InProcessTransport : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  void all_reduce(const Group& group, void* data, int64_t num_elems, DType dtype,
                  const std::string& what) override {
    hub_->all_reduce(rank_, group, {data, num_elems, dtype, what});
  }
  void abort(const std::string& reason) override { hub_->abort(reason); }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_in_process_transports(
    const InProcessOptions& options) {
  check(options.num_ranks >= 1 && options.timeout_ns > 0,
        "in-process transport of {} ranks with a timeout of {} ns", options.num_ranks,
        options.timeout_ns);
  const auto hub = std::make_shared<Hub>(options);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    transports.push_back(std::make_unique<InProcessTransport>(hub, rank));
  }
  return transports;
}

}  // namespace braid
