#include "comm/ledger.h"

#include <algorithm>

#include "base/errors.h"

namespace braid {
namespace {

constexpr size_t kUsualStreams = 16;

/// The parties that have not arrived.
std::vector<int> missing_ranks(const Meeting& meeting) {
  std::vector<int> missing;
  for (size_t i = 0; i < meeting.ranks.size(); ++i) {
    if (meeting.calls[i] == nullptr) {
      missing.push_back(meeting.ranks[i]);
    }
  }
  return missing;
}

void add_new(const std::vector<int>& more, std::vector<int>& ranks) {
  for (const int rank : more) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
      ranks.push_back(rank);
    }
  }
}

}  // namespace

std::string name_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  return text;
}

std::string describe_missing(int rank, std::vector<int> missing,
                             const std::function<RankAccount(int)>& account_of) {
  std::string text = fmt::format("for {}", name_ranks(missing));
  bool all_wait = true;
  for (size_t i = 0; i < missing.size(); ++i) {
    if (missing[i] == rank) {
      continue;
    }
    const RankAccount account = account_of(missing[i]);
    text += fmt::format("; rank {}: {}", missing[i], account.description);
    all_wait = all_wait && !account.awaited.empty();
    add_new(account.awaited, missing);
  }
  return all_wait ? text + "; all of these ranks wait for each other" : text;
}

void Ledger::reserve(int rank, const CommCall& call) {
  Rank& entry = ranks_[static_cast<size_t>(rank)];
  entry.last.what.reserve(call.what.size());
  entry.open.reserve(kUsualStreams);
}

void Ledger::begin(int rank, const Meeting& meeting, const CommCall& call) {
  Rank& entry = ranks_[static_cast<size_t>(rank)];
  ++entry.num_calls;
  entry.last = call;
  entry.last_place = {&meeting, &call, meeting.num_met + 1};
  entry.open.push_back(entry.last_place);
}

void Ledger::end(int rank, const Meeting& meeting) {
  std::vector<OpenCall>& open = ranks_[static_cast<size_t>(rank)].open;
  open.erase(std::find_if(open.begin(), open.end(),
                          [&](const OpenCall& one) { return one.meeting == &meeting; }));
}

std::string Ledger::describe_missing(const Meeting& meeting, size_t party) const {
  return braid::describe_missing(meeting.ranks[party], missing_ranks(meeting),
                                 [this](int rank) { return account(rank); });
}

RankAccount Ledger::account(int rank) const {
  const Rank& entry = of(rank);
  if (entry.told) {
    return *entry.told;
  }
  RankAccount account{.description = describe(entry), .awaited = {}};
  for (const OpenCall& open : entry.open) {
    if (waits(open)) {
      add_new(missing_ranks(*open.meeting), account.awaited);
    }
  }
  return account;
}

std::string Ledger::describe(const Rank& entry) {
  if (entry.num_calls == 0) {
    return "no call yet";
  }
  if (entry.open.empty()) {
    const OpenCall& last = entry.last_place;
    return fmt::format("last call {} in {}, {}, finished", describe_call(entry.last),
                       last.meeting->place(), last.meeting->number(last.number));
  }
  std::string text;
  for (const OpenCall& open : entry.open) {
    text += text.empty() ? "" : " and ";
    text += describe_open(open);
  }
  return text;
}

std::string Ledger::describe_open(const OpenCall& open) {
  const std::string where = fmt::format("{} in {}, {}", describe_call(*open.call),
                                        open.meeting->place(), open.meeting->number(open.number));
  return waits(open)
             ? fmt::format("waits with {} for {}", where, name_ranks(missing_ranks(*open.meeting)))
             : "is busy with " + where;
}

}  // namespace braid
