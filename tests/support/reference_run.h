#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/program.h"

namespace braid {

/// Runs the programs of all ranks task by task, with ends of calls found by search: a slow
/// reference for `verify_ranks`. The programs must fit together but for deadlocks; the only op
/// without communication is copy.
class ReferenceRun {
 public:
  explicit ReferenceRun(const std::vector<Program>& programs) : programs_(programs) {
    for (const Program& program : programs) {
      streams_.emplace_back(program.streams.size());
      recorded_.emplace_back();
      for (size_t i = 0; i < program.tasks.size(); ++i) {
        streams_.back()[program.tasks[i].stream.index()].tasks.emplace_back(i);
      }
    }
  }

  /// True if all tasks finish.
  bool run() {
    for (bool any = true; any;) {
      any = false;
      for (size_t rank = 0; rank < programs_.size(); ++rank) {
        for (size_t stream = 0; stream < streams_[rank].size(); ++stream) {
          any |= try_finish({rank, stream});
        }
      }
    }
    return std::all_of(streams_.begin(), streams_.end(), [](const auto& streams) {
      return std::all_of(streams.begin(), streams.end(),
                         [](const Stream& stream) { return stream.next == stream.tasks.size(); });
    });
  }

 private:
  struct Stream {
    std::vector<TaskId> tasks;
    size_t next = 0;
  };
  struct Place {
    size_t rank = 0;
    size_t stream = 0;
  };

  /// The task that has started there and not finished.
  const Task* head(const Place& at) const {
    const Stream& stream = streams_[at.rank][at.stream];
    if (stream.next == stream.tasks.size()) {
      return nullptr;
    }
    const Program& program = programs_[at.rank];
    const Task& task = program.tasks[stream.tasks[stream.next].index()];
    const auto waits = program.waits_of(task);
    const bool starts = std::all_of(waits.begin(), waits.end(), [&](EventId event) {
      return recorded_[at.rank].contains(event);
    });
    return starts ? &task : nullptr;
  }

  const OpSpec& spec(const Place& at) const { return programs_[at.rank].spec(*head(at)); }
  const Group& group(const Place& at) const {
    return programs_[at.rank].groups[group_of(programs_[at.rank], spec(at))->index()];
  }
  int64_t number(const Place& at, const char* attribute) const {
    return std::get<int64_t>(*spec(at).find_attribute(attribute));
  }

  /// A started task of `rank` of that op in the group of `at`.
  template <class Fits>
  std::optional<Place> find(int rank, const std::string& op, const Place& at, Fits&& fits) const {
    for (size_t stream = 0; stream < streams_[static_cast<size_t>(rank)].size(); ++stream) {
      const Place other{static_cast<size_t>(rank), stream};
      if (head(other) != nullptr && spec(other).op == op && group(other) == group(at) &&
          fits(other)) {
        return other;
      }
    }
    return std::nullopt;
  }

  /// All ends of the call that has started there; empty if one is missing.
  std::vector<Place> ends_of(const Place& at) const {
    const std::string op = spec(at).op;
    const std::vector<int>& members = group(at).ranks;
    std::vector<Place> ends;
    if (op == "send") {
      const int64_t self =
          std::find(members.begin(), members.end(), static_cast<int>(at.rank)) - members.begin();
      const auto recv = find(members[static_cast<size_t>(number(at, "peer"))], "recv", at,
                             [&](const Place& other) {
                               return number(other, "peer") == self &&
                                      number(other, "channel") == number(at, "channel");
                             });
      return recv ? std::vector{at, *recv} : ends;
    }
    for (const int member : members) {
      const auto end = find(member, op, at, [](const Place&) { return true; });
      if (!end) {
        return {};
      }
      ends.push_back(*end);
    }
    return ends;
  }

  bool try_finish(const Place& at) {
    if (head(at) == nullptr || spec(at).op == "recv") {
      return false;  // a recv ends with its send
    }
    const std::vector<Place> ends = spec(at).op == "copy" ? std::vector{at} : ends_of(at);
    for (const Place& end : ends) {
      const Task& task = *head(end);
      ++streams_[end.rank][end.stream].next;
      if (task.record.valid()) {
        recorded_[end.rank].insert(task.record);
      }
    }
    return !ends.empty();
  }

  const std::vector<Program>& programs_;
  std::vector<std::vector<Stream>> streams_;
  std::vector<std::set<EventId>> recorded_;
};

}  // namespace braid
