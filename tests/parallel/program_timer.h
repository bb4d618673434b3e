#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "ir/program.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "parallel/schedule_stats.h"

namespace braid {

/// Runs the programs of all ranks, with their events, where time passes in jobs only: the first
/// task of a forward, dgrad or wgrad of a microbatch in a virtual stage takes all of its time, all
/// other tasks none. Communication ends when all ranks are there.
class ProgramTimer {
 public:
  ProgramTimer(const std::vector<Program>& programs, const JobCosts& costs)
      : programs_(programs), costs_(costs) {
    for (const Program& program : programs) {
      Rank rank;
      rank.streams.resize(program.streams.size());
      rank.cost.resize(program.tasks.size());
      rank.recorded.resize(program.num_events);
      std::set<std::tuple<Phase, int32_t, int32_t>> seen;
      for (size_t i = 0; i < program.tasks.size(); ++i) {
        const Task& task = program.tasks[i];
        rank.streams[task.stream.index()].tasks.push_back(i);
        const Label& label = task.label;
        if (label.microbatch >= 0 && label.phase != Phase::kComm &&
            seen.emplace(label.phase, label.microbatch, label.virtual_stage).second) {
          rank.cost[i] = cost_of(label.phase);
        }
      }
      ranks_.push_back(std::move(rank));
    }
  }

  /// When the last job ends.
  int64_t run() {
    for (bool any = true; any;) {
      any = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        for (Stream& stream : ranks_[rank].streams) {
          while (stream.next < stream.tasks.size() && advance(rank, stream)) {
            any = true;
          }
        }
      }
    }
    int64_t end = 0;
    for (const Rank& rank : ranks_) {
      for (const Stream& stream : rank.streams) {
        check(stream.next == stream.tasks.size(), "a program waits for ever");
        end = std::max(end, stream.free_at);
      }
    }
    return end;
  }

 private:
  struct Stream {
    std::vector<size_t> tasks;
    size_t next = 0;
    int64_t free_at = 0;
    bool has_arrived = false;  // where its next task meets others
  };
  struct Rank {
    std::vector<Stream> streams;
    std::vector<int64_t> cost;                     // by task
    std::vector<std::optional<int64_t>> recorded;  // by event
    std::map<std::string, int> num_calls;          // by place
  };
  struct Meeting {
    size_t num_here = 0;
    int64_t time = 0;
  };

  int64_t cost_of(Phase phase) const {
    return phase == Phase::kForward ? costs_.forward
           : phase == Phase::kDgrad ? costs_.dgrad
           : phase == Phase::kWgrad ? costs_.wgrad
                                    : 0;
  }

  /// Where the task meets others, and how many meet there; nullopt for what needs nobody.
  std::optional<std::pair<std::string, size_t>> place_of(const Program& program,
                                                         const Task& task) const {
    const OpSpec& spec = program.spec(task);
    if (spec.op == "send" || spec.op == "recv") {
      const auto message = attributes_of<MessageAttributes>(spec);
      const Group& group = program.groups[static_cast<size_t>(message.group)];
      const int peer = group.ranks[static_cast<size_t>(message.peer)];
      const bool sends = spec.op == "send";
      return std::pair(fmt::format("{} {} {} {}", group.name, sends ? program.rank : peer,
                                   sends ? peer : program.rank, message.channel),
                       size_t{2});
    }
    for (const Attribute& attribute : spec.attributes) {
      if (attribute.name == "group" && task.label.phase == Phase::kComm) {
        const Group& group =
            program.groups[static_cast<size_t>(std::get<int64_t>(attribute.value))];
        std::string place = group.name;
        for (const int rank : group.ranks) {
          place += fmt::format(" {}", rank);
        }
        return std::pair(place, group.ranks.size());
      }
    }
    return std::nullopt;
  }

  /// False if the stream's next task has to wait.
  bool advance(size_t rank_index, Stream& stream) {
    Rank& rank = ranks_[rank_index];
    const Program& program = programs_[rank_index];
    const size_t index = stream.tasks[stream.next];
    const Task& task = program.tasks[index];
    int64_t start = stream.free_at;
    for (const EventId event : program.waits_of(task)) {
      if (!rank.recorded[event.index()]) {
        return false;
      }
      start = std::max(start, *rank.recorded[event.index()]);
    }
    if (const auto place = place_of(program, task)) {
      const std::string call = fmt::format("{} #{}", place->first, rank.num_calls[place->first]);
      Meeting& meeting = meetings_[call];
      if (!stream.has_arrived) {
        stream.has_arrived = true;
        ++meeting.num_here;
        meeting.time = std::max(meeting.time, start);
      }
      if (meeting.num_here < place->second) {
        return false;
      }
      start = meeting.time;
      stream.has_arrived = false;
      ++rank.num_calls[place->first];
    }
    stream.free_at = start + rank.cost[index];
    if (task.record.valid()) {
      rank.recorded[task.record.index()] = stream.free_at;
    }
    ++stream.next;
    return true;
  }

  const std::vector<Program>& programs_;
  JobCosts costs_;
  std::vector<Rank> ranks_;
  std::map<std::string, Meeting> meetings_;
};

}  // namespace braid
