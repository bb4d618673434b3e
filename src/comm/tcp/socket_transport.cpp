#include "comm/tcp/socket_transport.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_fields.h"
#include "base/errors.h"
#include "comm/ended_steps.h"
#include "comm/ledger.h"
#include "comm/meeting.h"
#include "comm/rendezvous.h"
#include "comm/row_exchange.h"
#include "comm/tcp/frame.h"
#include "comm/tcp/received_parts.h"
#include "comm/tcp/remote_call.h"
#include "comm/tcp/remote_meeting.h"
#include "comm/tcp/socket_mesh.h"

namespace braid {
namespace {

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

constexpr std::chrono::milliseconds kLook{20};          // for aborts, which do not notify waiting
                                                        // threads here
constexpr int64_t kLeastConnectNs = 5'000'000'000;      // even if calls time out sooner
constexpr std::chrono::milliseconds kAskPatience{500};  // for other ranks to report what they do
constexpr std::string_view kQuestion = "last calls";    // to other ranks; the answer is a
                                                        // RankAccount

/// Messages between ranks.
enum class Word : uint8_t {
  kCall = 1,  // of a meeting: pack_call, elements
  kStep,      // the sender has ended one more step
};

class SocketTransport final : public Transport {
 public:
  explicit SocketTransport(const SocketTransportOptions& options)
      : processes_(*options.processes),
        rank_(processes_.index()),
        num_ranks_(processes_.size()),
        timeout_(std::min(options.timeout_ns, kLongestTimeoutNs)),
        ledger_(num_ranks_),
        steps_(num_ranks_),
        mesh_(processes_, std::max(options.timeout_ns, kLeastConnectNs),
              [this](int from, Frame frame) { receive(from, std::move(frame)); }),
        questions_(open_place(processes_)),
        answer_(*questions_, std::string(kQuestion), [this] { return answer(); }) {}

  void prepare(const CommCall& call) override;
  void run(const CommCall& call) override;
  void abort(const std::string& reason) override { processes_.abort(reason); }
  void end_step() override;
  std::optional<std::string> overdue() const override;
  std::optional<Abort> aborted() const override;

 private:
  static constexpr int64_t kLongestTimeoutNs = int64_t{365} * 24 * 3600 * 1'000'000'000;

  size_t member_of(const CommCall& call) const;
  RemoteMeeting& place_of(const CommCall& call, size_t member);
  void send_parts(const Meeting& meeting, size_t member, const CommCall& call, int64_t number);
  void arrive(Lock& lock, RemoteMeeting& place, size_t party);
  void share(Lock& lock, RemoteMeeting& place, size_t party, size_t member, const CommCall& call);
  void throw_if_aborted() const;
  [[noreturn]] void fail(Lock& lock, const std::string& message);
  std::string missing_message(Lock& lock, const Meeting& meeting, size_t party);

  void receive(int from, Frame frame);
  void take_call(int from, std::string body);
  std::string answer() const;

  ProcessGroup& processes_;
  const int rank_;
  const int num_ranks_;
  const std::chrono::nanoseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  mutable std::optional<Abort> abort_;  // set when the abort was noticed
  Ledger ledger_;
  std::map<std::string, std::unique_ptr<RemoteMeeting>> places_;  // by meeting_key
  EndedSteps steps_;
  SocketMesh mesh_;  // after the members that its threads use
  std::unique_ptr<Rendezvous> questions_;
  StandingAnswer answer_;  // likewise
};

std::string to_bytes(const RankAccount& account) {
  ByteWriter bytes;
  bytes.text(account.description).number(static_cast<uint64_t>(account.awaited.size()));
  for (const int rank : account.awaited) {
    bytes.number(static_cast<int32_t>(rank));
  }
  return bytes.take();
}

RankAccount account_from_bytes(std::string_view bytes) {
  ByteReader reader(bytes);
  RankAccount account{.description = reader.text(), .awaited = {}};
  for (size_t left = reader.count(sizeof(int32_t)); left > 0; --left) {
    account.awaited.push_back(reader.number<int32_t>());
  }
  return account;
}

size_t SocketTransport::member_of(const CommCall& call) const {
  const std::vector<int>& ranks = call.group->ranks;
  const auto unknown =
      std::ranges::find_if(ranks, [&](int member) { return member < 0 || member >= num_ranks_; });
  check(unknown == ranks.end(), "group {} has rank {} of {}", call.group->name,
        unknown == ranks.end() ? 0 : *unknown, num_ranks_);
  return check_comm_call(call, rank_);
}

RemoteMeeting& SocketTransport::place_of(const CommCall& call, size_t member) {
  auto place = std::make_unique<RemoteMeeting>(call, member);
  const std::string key = meeting_key(place->meeting());
  return *places_.try_emplace(key, std::move(place)).first->second;
}

void SocketTransport::prepare(const CommCall& call) {
  const size_t member = member_of(call);
  const Lock lock(mutex_);
  place_of(call, member);
  ledger_.reserve(rank_, call);
}

void SocketTransport::throw_if_aborted() const {
  if (const std::optional<std::string> reason = processes_.aborted()) {
    throw AbortedError(*reason);
  }
}

void SocketTransport::run(const CommCall& call) {
  const size_t member = member_of(call);
  const size_t party = party_of(call, member);
  throw_if_aborted();
  Lock lock(mutex_);
  RemoteMeeting& place = place_of(call, member);
  Meeting& meeting = place.meeting();
  if (meeting.ranks.size() == 1) {  // such calls may run in any order
    ledger_.begin(rank_, meeting, call);
    ++meeting.num_met;
    ledger_.end(rank_, meeting);
    lock.unlock();
    return run_alone(call);
  }
  place.open(party, call);
  ledger_.begin(rank_, meeting, call);
  struct Close {
    SocketTransport& transport;
    RemoteMeeting& place;
    Lock& lock;
    ~Close() {
      if (!lock.owns_lock()) {
        lock.lock();
      }
      place.close();
      transport.ledger_.end(transport.rank_, place.meeting());
    }
  } const closing{*this, place, lock};
  const int64_t number = meeting.num_met + 1;
  lock.unlock();
  send_parts(meeting, member, call, number);
  lock.lock();
  arrive(lock, place, party);
  share(lock, place, party, member, call);
}

/// Of a call that exchanges rows: all members of the group are parties.
void share_rows(const std::vector<std::unique_ptr<RemoteCall>>& remote, size_t member,
                const CommCall& call) {
  const std::string own = pack_rows(call, member, member);
  std::vector<std::string_view> packed;
  for (size_t i = 0; i < remote.size(); ++i) {
    packed.push_back(i == member ? own : remote[i]->bytes);
  }
  exchange_packed_rows(call, member, packed);
}

/// Sends to each other party, starting after this one, so that not all start with the same.
void SocketTransport::send_parts(const Meeting& meeting, size_t member, const CommCall& call,
                                 int64_t number) {
  const std::vector<int>& members = call.group->ranks;
  for (size_t i = 1; i < members.size(); ++i) {
    const size_t to = (member + i) % members.size();
    if (std::ranges::find(meeting.ranks, members[to]) == meeting.ranks.end()) {
      continue;  // in the group, but not part of this message
    }
    const SentPart part = sent_part(call, member, to);
    if (call.exchanges_rows()) {
      const std::string rows = pack_rows(call, member, to);
      mesh_.send(members[to], static_cast<uint8_t>(Word::kCall), pack_call(call, number, part),
                 std::as_bytes(std::span(rows)));
      continue;
    }
    const size_t elem_bytes = dtype_bytes(call.dtype);
    mesh_.send(members[to], static_cast<uint8_t>(Word::kCall), pack_call(call, number, part),
               part.count == 0 ? std::span<const std::byte>()
                               : std::span(call.send + static_cast<size_t>(part.begin) * elem_bytes,
                                           static_cast<size_t>(part.count) * elem_bytes));
  }
}

/// Returns when the calls of all parties have arrived and fit together.
void SocketTransport::arrive(Lock& lock, RemoteMeeting& place, size_t party) {
  const Clock::time_point deadline = Clock::now() + timeout_;
  while (!place.all_here()) {
    throw_if_aborted();
    if (Clock::now() >= deadline) {
      fail(lock, missing_message(lock, place.meeting(), party));
    }
    changed_.wait_for(lock, std::min<Clock::duration>(kLook, deadline - Clock::now()));
  }
  const std::string mismatch = place.meeting().find_mismatch();
  if (!mismatch.empty()) {
    fail(lock, mismatch);
  }
  ++place.meeting().num_met;
}

void SocketTransport::share(Lock& lock, RemoteMeeting& place, size_t party, size_t member,
                            const CommCall& call) {
  const std::vector<std::unique_ptr<RemoteCall>> remote = place.take(party);
  lock.unlock();
  if (call.exchanges_rows()) {
    share_rows(remote, member, call);
    return throw_if_aborted();
  }
  std::vector<const std::byte*> parts;
  const size_t own = static_cast<size_t>(sent_part(call, member, member).begin);
  for (size_t i = 0; i < remote.size(); ++i) {
    if (i != party) {
      parts.push_back(reinterpret_cast<const std::byte*>(remote[i]->bytes.data()));
    } else {
      parts.push_back(call.send == nullptr ? nullptr : call.send + own * dtype_bytes(call.dtype));
    }
  }
  write_result(call, party, parts);
  throw_if_aborted();
}

/// The first error of all ranks stays; only the rank where it occurred throws it as a cause.
void SocketTransport::fail(Lock& lock, const std::string& message) {
  lock.unlock();
  processes_.abort(message);
  const std::string reason = processes_.aborted().value_or(message);
  if (reason != message) {
    throw AbortedError(reason);
  }
  throw DeviceError(message);
}

/// Asks the other ranks what they do, with a short timeout for those that do not answer.
std::string SocketTransport::missing_message(Lock& lock, const Meeting& meeting, size_t party) {
  lock.unlock();
  const std::map<int, std::string> answers = questions_->ask_others(kQuestion, kAskPatience);
  lock.lock();
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (rank != rank_) {
      const auto found = answers.find(rank);
      ledger_.tell(rank, found == answers.end() ? RankAccount{"does not answer", {}}
                                                : account_from_bytes(found->second));
    }
  }
  return fmt::format("rank {} waited {} s in {}, {}, {}, {}", rank_,
                     std::chrono::duration<double>(timeout_).count(), meeting.place(),
                     meeting.number(meeting.num_met + 1), describe_call(*meeting.calls[party]),
                     ledger_.describe_missing(meeting, party));
}

void SocketTransport::end_step() {
  {
    const Lock lock(mutex_);
    steps_.add(rank_, Clock::now());
  }
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (rank != rank_ && !processes_.aborted()) {
      mesh_.send(rank, static_cast<uint8_t>(Word::kStep), {});
    }
  }
}

std::optional<std::string> SocketTransport::overdue() const {
  if (processes_.aborted()) {
    return std::nullopt;
  }
  const Lock lock(mutex_);
  return steps_.describe_overdue(rank_, timeout_, Clock::now(), ledger_);
}

std::optional<Abort> SocketTransport::aborted() const {
  const std::optional<std::string> reason = processes_.aborted();
  const Lock lock(mutex_);
  if (reason && !abort_) {
    abort_ = Abort{*reason, Clock::now()};
  }
  return abort_;
}

void SocketTransport::receive(int from, Frame frame) {
  switch (static_cast<Word>(frame.type)) {
    case Word::kCall:
      return take_call(from, std::move(frame.body));
    case Word::kStep: {
      const Lock lock(mutex_);
      return steps_.add(from, Clock::now());
    }
  }
  throw_device_error("a message of unknown type {}", frame.type);
}

void SocketTransport::take_call(int from, std::string body) {
  std::unique_ptr<RemoteCall> remote =
      unpack_call(std::move(body), {.from = from, .to = rank_, .num_ranks = num_ranks_});
  const std::vector<int>& ranks = remote->group.ranks;
  const auto member = static_cast<size_t>(std::ranges::find(ranks, from) - ranks.begin());
  const size_t party = party_of(remote->call, member);
  const Lock lock(mutex_);
  RemoteMeeting& place = place_of(remote->call, member);
  if (place.add(party, std::move(remote))) {
    changed_.notify_all();
  }
}

std::string SocketTransport::answer() const {
  const Lock lock(mutex_);
  return to_bytes(ledger_.account(rank_));
}

}  // namespace

std::unique_ptr<Transport> make_socket_transport(const SocketTransportOptions& options) {
  check(options.processes != nullptr && options.timeout_ns > 0,
        "socket transport without processes or with a timeout of {} ns", options.timeout_ns);
  try {
    return std::make_unique<SocketTransport>(options);
  } catch (const DeviceError& error) {  // the others wait for this rank
    options.processes->abort(error.what());
    throw;
  }
}

}  // namespace braid
