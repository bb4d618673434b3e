#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "comm/ended_steps.h"
#include "comm/ledger.h"
#include "comm/links.h"
#include "comm/meeting.h"
#include "comm/transport.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLongestTimeoutNs =
    int64_t{365} * 24 * 3600 * 1'000'000'000;  // now + timeout must not overflow

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

Clock::time_point time_of(int64_t ns) {
  return Clock::time_point(
      std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(ns)));
}

/// Equal for calls of one meeting.
size_t meeting_hash(const CommCall& call) {
  size_t hash = std::hash<std::string_view>{}(call.group->name);
  for (const int rank : call.group->ranks) {
    hash = hash * 1'000'003 + static_cast<size_t>(rank);
  }
  return hash * 1'000'003 + (call.is_message() ? static_cast<size_t>(call.channel) + 1 : 0);
}

/// The state that the ranks share. One mutex guards it; no thread holds it while copying or adding.
class Hub {
 public:
  explicit Hub(const InProcessOptions& options)
      : timeout_ns_(std::min(options.timeout_ns, kLongestTimeoutNs)),
        ledger_(options.num_ranks),
        steps_(options.num_ranks),
        links_(options.links, options.num_ranks) {}

  void prepare(int rank, const CommCall& call);
  void run(int rank, const CommCall& call);
  void abort(const std::string& reason);
  std::optional<Abort> aborted();
  void end_step(int rank);
  std::optional<std::string> overdue(int rank);

 private:
  using Lock = std::unique_lock<std::mutex>;
  class Visit;

  size_t member_of(int rank, const CommCall& call) const;
  Meeting& meeting_of(const CommCall& call, size_t member);
  void arrive(Lock& lock, Meeting& meeting, size_t party);
  void meet(Meeting& meeting);
  int64_t link_time(const Meeting& meeting);
  void leave(Lock& lock, Meeting& meeting);
  void abort_locked(const std::string& reason);
  std::string missing_message(const Meeting& meeting, size_t party) const;

  const int64_t timeout_ns_;
  std::mutex mutex_;
  std::optional<Abort> abort_;
  Ledger ledger_;
  EndedSteps steps_;
  LinkSchedule links_;
  std::unordered_multimap<size_t, std::unique_ptr<Meeting>> meetings_;
};

/// Marks a rank as being in a call. Constructed and destroyed with the hub's mutex held.
class Hub::Visit {
 public:
  Visit(Hub& hub, Meeting& meeting, size_t party, const CommCall& call)
      : hub_(hub), meeting_(meeting), party_(party) {
    const CommCall*& entry = meeting.calls[party];
    if (entry != nullptr) {
      throw_internal_error("rank {} is in two calls of {} at once: {} and {}", meeting.ranks[party],
                           meeting.place(), describe_call(*entry), describe_call(call));
    }
    hub.ledger_.begin(meeting.ranks[party], meeting, call);
    entry = &call;
  }
  ~Visit() {
    meeting_.calls[party_] = nullptr;
    hub_.ledger_.end(meeting_.ranks[party_], meeting_);
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  Hub& hub_;
  Meeting& meeting_;
  size_t party_;
};

size_t Hub::member_of(int rank, const CommCall& call) const {
  const std::vector<int>& ranks = call.group->ranks;
  const auto unknown = std::find_if(ranks.begin(), ranks.end(), [&](int member) {
    return member < 0 || member >= ledger_.num_ranks();
  });
  check(unknown == ranks.end(), "group {} has rank {} of {}", call.group->name,
        unknown == ranks.end() ? 0 : *unknown, ledger_.num_ranks());
  return check_comm_call(call, rank);
}

Meeting& Hub::meeting_of(const CommCall& call, size_t member) {
  const size_t hash = meeting_hash(call);
  const auto [begin, end] = meetings_.equal_range(hash);
  const auto found = std::find_if(
      begin, end, [&](const auto& entry) { return meets_in(*entry.second, call, member); });
  if (found != end) {
    return *found->second;
  }
  return *meetings_.emplace(hash, std::make_unique<Meeting>(call, member))->second;
}

void Hub::prepare(int rank, const CommCall& call) {
  const size_t member = member_of(rank, call);
  const Lock lock(mutex_);
  meeting_of(call, member);
  ledger_.reserve(rank, call);
}

void Hub::run(int rank, const CommCall& call) {
  const size_t member = member_of(rank, call);
  const size_t party = party_of(call, member);
  Lock lock(mutex_);
  if (abort_) {
    throw AbortedError(abort_->reason);
  }
  Meeting& meeting = meeting_of(call, member);
  if (meeting.ranks.size() == 1) {  // such calls may run in any order
    ledger_.begin(rank, meeting, call);
    ++meeting.num_met;
    ledger_.end(rank, meeting);
    lock.unlock();
    return run_alone(call);
  }
  const Visit visit(*this, meeting, party, call);
  arrive(lock, meeting, party);
  if (!abort_) {
    lock.unlock();
    meeting.do_share(party);
    lock.lock();
  }
  leave(lock, meeting);
}

/// Returns when all parties are in this call and only their shares of the work remain. Each of them
/// must then `leave`.
void Hub::arrive(Lock& lock, Meeting& meeting, size_t party) {
  const int64_t number = meeting.num_met + 1;
  if (++meeting.num_arrived == meeting.calls.size()) {
    meet(meeting);
  }
  const bool in_time = meeting.changed.wait_until(lock, time_of(now_ns() + timeout_ns_), [&] {
    return meeting.num_met == number || abort_.has_value();
  });
  if (meeting.num_met == number) {
    return;
  }
  if (!meeting.mismatch.empty()) {
    throw DeviceError(meeting.mismatch);
  }
  if (in_time) {
    throw AbortedError(abort_->reason);
  }
  const std::string message = missing_message(meeting, party);
  abort_locked(message);
  throw DeviceError(message);
}

void Hub::meet(Meeting& meeting) {
  meeting.mismatch = meeting.find_mismatch();
  if (!meeting.mismatch.empty()) {
    return abort_locked(meeting.mismatch);
  }
  meeting.take_buffers();
  meeting.num_arrived = 0;
  meeting.num_busy = meeting.calls.size();
  ++meeting.num_met;
  meeting.due_ns = link_time(meeting);
  meeting.changed.notify_all();
}

/// The time when the links have delivered the data.
int64_t Hub::link_time(const Meeting& meeting) {
  const std::span<const int> ranks(meeting.ranks);
  const std::span<const int> senders = meeting.is_channel ? ranks.first(1) : ranks;
  const std::span<const int> receivers = meeting.is_channel ? ranks.last(1) : ranks;
  return links_.add(*meeting.calls[0], senders, receivers, now_ns());
}

/// Waits until no party uses the buffers of this call any more, without a timeout, since this is
/// only copying and adding; then waits for the links.
void Hub::leave(Lock& lock, Meeting& meeting) {
  if (--meeting.num_busy == 0) {
    meeting.changed.notify_all();
  }
  meeting.changed.wait(lock, [&] { return meeting.num_busy == 0; });
  if (meeting.due_ns > now_ns()) {
    meeting.changed.wait_until(lock, time_of(meeting.due_ns), [&] { return abort_.has_value(); });
  }
  if (abort_) {  // possibly before some party had done its share
    throw AbortedError(abort_->reason);
  }
}

void Hub::abort(const std::string& reason) {
  const Lock lock(mutex_);
  abort_locked(reason);
}

void Hub::abort_locked(const std::string& reason) {
  if (abort_) {
    return;
  }
  abort_ = Abort{reason, Clock::now()};
  for (const auto& [hash, meeting] : meetings_) {
    meeting->changed.notify_all();
  }
}

std::optional<Abort> Hub::aborted() {
  const Lock lock(mutex_);
  return abort_;
}

void Hub::end_step(int rank) {
  const Lock lock(mutex_);
  steps_.add(rank, Clock::now());
}

std::optional<std::string> Hub::overdue(int rank) {
  const Lock lock(mutex_);
  if (abort_) {
    return std::nullopt;
  }
  return steps_.describe_overdue(rank, std::chrono::nanoseconds(timeout_ns_), Clock::now(),
                                 ledger_);
}

std::string Hub::missing_message(const Meeting& meeting, size_t party) const {
  return fmt::format("rank {} waited {} s in {}, {}, {}, {}", meeting.ranks[party],
                     static_cast<double>(timeout_ns_) / 1e9, meeting.place(),
                     meeting.number(meeting.num_met + 1), describe_call(*meeting.calls[party]),
                     ledger_.describe_missing(meeting, party));
}

/// One rank's end of the hub.
class InProcessTransport : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  void prepare(const CommCall& call) override { hub_->prepare(rank_, call); }
  void run(const CommCall& call) override { hub_->run(rank_, call); }
  void abort(const std::string& reason) override { hub_->abort(reason); }
  void end_step() override { hub_->end_step(rank_); }
  std::optional<std::string> overdue() const override { return hub_->overdue(rank_); }
  std::optional<Abort> aborted() const override { return hub_->aborted(); }

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
