#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/rank_program_writer.h"

namespace braid {

struct RandomRanksOptions {
  int num_ranks = 4;
  int num_groups = 5;
  int num_operations = 60;
  int num_streams = 3;
  bool scramble = false;  ///< ranks put their tasks into orders of their own: some of these
                          ///< programs deadlock, and nothing else is wrong with them
};

/// Programs of several ranks that communicate in random groups, the same for the same seed on any
/// machine: all are written from one list of operations, so they fit together.
class RandomRanks {
 public:
  RandomRanks(uint64_t seed, const RandomRanksOptions& options)
      : options_(options), random_(seed) {}

  std::vector<Program> make() {
    add_groups();
    for (int i = 0; i < options_.num_operations; ++i) {
      operations_.push_back(any_operation());
    }
    std::vector<Program> programs;
    for (int rank = 0; rank < options_.num_ranks; ++rank) {
      programs.push_back(make_rank(rank));
    }
    return programs;
  }

 private:
  struct Operation {
    size_t group = 0;
    std::string op;  // a collective, or "message"
    size_t source = 0;
    size_t destination = 0;
    int64_t channel = 0;
    int64_t elems = 1;
    int32_t number = 0;
  };

  size_t below(size_t limit) { return random_() % limit; }

  void add_groups() {
    for (int i = 0; i < options_.num_groups; ++i) {
      std::set<int> ranks;
      const size_t size = 1 + below(static_cast<size_t>(options_.num_ranks));
      while (ranks.size() < size) {
        ranks.insert(static_cast<int>(below(static_cast<size_t>(options_.num_ranks))));
      }
      groups_.emplace_back(ranks.begin(), ranks.end());
      std::shuffle(groups_.back().begin(), groups_.back().end(), random_);
    }
  }

  Operation any_operation() {
    constexpr std::array kOps = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                 "broadcast",  "reduce",     "ring_shift"};
    Operation it{.group = below(groups_.size()),
                 .op = kOps[below(kOps.size())],
                 .elems = 1 + static_cast<int64_t>(below(3)),
                 .number = static_cast<int32_t>(operations_.size())};
    const size_t members = groups_[it.group].size();
    if (members > 1 && below(2) == 0) {
      it.op = "message";
      it.source = below(members);
      it.destination = (it.source + 1 + below(members - 1)) % members;
      it.channel = static_cast<int64_t>(below(2));
    }
    return it;
  }

  /// Calls that meet by their order stay in order: all of a group are on one stream.
  std::vector<Operation> order_of_rank() {
    std::vector<Operation> order = operations_;
    for (size_t i = 0; options_.scramble && i + 1 < order.size(); ++i) {
      if (below(4) == 0 && order[i].group != order[i + 1].group) {
        std::swap(order[i], order[i + 1]);
      }
    }
    return order;
  }

  Program make_rank(int rank) {
    std::vector<std::string> streams;
    for (int i = 0; i < options_.num_streams; ++i) {
      streams.push_back("stream" + std::to_string(i));
    }
    RankProgramWriter writer(rank, options_.num_ranks, streams);
    for (size_t group = 0; group < groups_.size(); ++group) {
      writer.add_group("group" + std::to_string(group), groups_[group]);
    }
    std::vector<size_t> stream_of_group;
    for (size_t group = 0; group < groups_.size(); ++group) {
      stream_of_group.push_back(below(streams.size()));
    }
    std::vector<TaskId> tasks;
    for (const Operation& operation : order_of_rank()) {
      const std::vector<int>& ranks = groups_[operation.group];
      const auto member =
          static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
      const TaskId task =
          add(writer, operation, member, ranks.size(), stream_of_group[operation.group]);
      for (const TaskId earlier : {any_of(tasks), any_of(tasks)}) {
        if (task.valid() && earlier.valid() && below(3) == 0) {
          writer.wait(task, earlier);
        }
      }
      if (task.valid()) {
        tasks.push_back(task);
      }
      if (below(2) == 0) {
        tasks.push_back(writer.compute(below(streams.size())));
      }
    }
    return writer.take();
  }

  TaskId any_of(const std::vector<TaskId>& tasks) {
    return tasks.empty() ? TaskId() : tasks[below(tasks.size())];
  }

  static TaskId add(RankProgramWriter& writer, const Operation& operation, size_t member,
                    size_t members, size_t stream) {
    const Label label{.phase = Phase::kComm, .microbatch = operation.number};
    if (member == members) {
      return {};
    }
    if (operation.op != "message") {
      return writer.collective(operation.op, operation.group, operation.elems, stream, label);
    }
    const bool sends = member == operation.source;
    if (!sends && member != operation.destination) {
      return {};
    }
    const RankProgramWriter::Message message{
        .group = operation.group,
        .peer = static_cast<int64_t>(sends ? operation.destination : operation.source),
        .channel = operation.channel,
        .elems = operation.elems};
    return sends ? writer.send(message, stream, label) : writer.recv(message, stream, label);
  }

  RandomRanksOptions options_;
  std::mt19937_64 random_;
  std::vector<std::vector<int>> groups_;
  std::vector<Operation> operations_;
};

inline std::vector<Program> random_ranks(uint64_t seed, const RandomRanksOptions& options = {}) {
  return RandomRanks(seed, options).make();
}

}  // namespace braid
