#include "comm/tcp/remote_meeting.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace braid {

void RemoteMeeting::open(size_t party, const CommCall& call) {
  if (is_open_) {
    throw_internal_error("rank {} is in two calls of {} at once: {} and {}", meeting_.ranks[party],
                         meeting_.place(), describe_call(*meeting_.calls[party]),
                         describe_call(call));
  }
  is_open_ = true;
  meeting_.calls[party] = &call;
  look();
}

void RemoteMeeting::close() {
  std::ranges::fill(meeting_.calls, nullptr);
  is_open_ = false;
}

bool RemoteMeeting::add(size_t party, std::unique_ptr<RemoteCall> remote) {
  given_[party].push_back(std::move(remote));
  if (!is_open_ || meeting_.calls[party] != nullptr) {
    return false;
  }
  look();
  return true;
}

/// Updates the meeting with the calls that have arrived for the open call.
void RemoteMeeting::look() {
  for (size_t i = 0; i < given_.size(); ++i) {
    if (!given_[i].empty()) {
      meeting_.calls[i] = &given_[i].front()->call;
    }
  }
}

bool RemoteMeeting::all_here() const {
  return std::ranges::none_of(meeting_.calls, [](const CommCall* call) { return !call; });
}

std::vector<std::unique_ptr<RemoteCall>> RemoteMeeting::take(size_t party) {
  std::vector<std::unique_ptr<RemoteCall>> taken(given_.size());
  for (size_t i = 0; i < given_.size(); ++i) {
    if (i == party) {
      continue;
    }
    taken[i] = std::move(given_[i].front());
    given_[i].pop_front();
    check(taken[i]->number == meeting_.num_met, "{} of rank {} in {} comes as {}",
          meeting_.number(taken[i]->number), meeting_.ranks[i], meeting_.place(),
          meeting_.number(meeting_.num_met));
    // Any call that fits: it only marks that party i has arrived.
    meeting_.calls[i] = meeting_.calls[party];
  }
  return taken;
}

std::string meeting_key(const Meeting& meeting) {
  std::string key = meeting.place();
  for (const int rank : meeting.group.ranks) {
    key += fmt::format(" {}", rank);
  }
  return key;
}

}  // namespace braid
