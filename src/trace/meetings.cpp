#include "trace/meetings.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace braid {
namespace {

/// A call of a sequence, by the sequence's number over all ranks.
struct NumberedCall {
  uint32_t sequence = 0;
  uint32_t call = 0;
  CallAt at;

  bool meets(const NumberedCall& other) const {
    return sequence == other.sequence && call == other.call;
  }
  bool operator<(const NumberedCall& other) const {
    return sequence != other.sequence ? sequence < other.sequence : call < other.call;
  }
};

/// By task: whether its time includes waiting for other ranks.
std::vector<bool> waiting_tasks(const RankTimeline& rank) {
  if (rank.kernels.empty()) {
    return std::vector<bool>(rank.tasks.size(), true);
  }
  std::vector<bool> waits(rank.tasks.size());
  for (const TimelineKernel& kernel : rank.kernels) {
    if (kernel.task < waits.size() && kernel.name < rank.kernel_names.size() &&
        rank.kernel_names[kernel.name].starts_with("nccl")) {
      waits[kernel.task] = true;
    }
  }
  return waits;
}

std::vector<NumberedCall> calls_of(const Timeline& timeline) {
  std::vector<NumberedCall> calls;
  std::map<std::string, uint32_t> numbers;
  for (size_t r = 0; r < timeline.ranks.size(); ++r) {
    const RankTimeline& rank = timeline.ranks[r];
    std::vector<uint32_t> number_of;
    for (const TimelineSequence& sequence : rank.sequences) {
      const auto next = static_cast<uint32_t>(numbers.size());
      number_of.push_back(numbers.emplace(sequence.name, next).first->second);
    }
    const std::vector<bool> waits = waiting_tasks(rank);
    for (size_t t = 0; t < rank.tasks.size(); ++t) {
      if (rank.tasks[t].sequence < number_of.size()) {
        calls.push_back({number_of[rank.tasks[t].sequence], rank.tasks[t].call, {r, t, waits[t]}});
      }
    }
  }
  std::stable_sort(calls.begin(), calls.end());  // by rank within a communication
  return calls;
}

}  // namespace

void for_each_meeting(const Timeline& timeline,
                      const std::function<void(std::span<const CallAt> calls)>& visit) {
  const std::vector<NumberedCall> calls = calls_of(timeline);
  std::vector<CallAt> together;
  for (size_t begin = 0; begin < calls.size();) {
    together.clear();
    size_t end = begin;
    for (; end < calls.size() && calls[end].meets(calls[begin]); ++end) {
      together.push_back(calls[end].at);
    }
    begin = end;
    if (together.size() > 1) {
      visit(together);
    }
  }
}

}  // namespace braid
