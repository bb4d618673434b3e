#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"
#include "trace/timeline.h"

namespace braid {

/// Finds the communications of a program that match those of other ranks, and their order.
class CallSequences {
 public:
  /// Throws InternalError for a communication of a group or member that the program lacks.
  explicit CallSequences(const Program& program);

  struct Place {
    uint32_t sequence = TimelineTask::kNoSequence;
    uint32_t call = 0;
  };
  /// The place of a task; no sequence if it communicates with no other rank.
  const Place& of(size_t task) const { return places_[task]; }

  /// In the order of their first calls.
  const std::vector<TimelineSequence>& sequences() const { return sequences_; }

 private:
  std::vector<Place> places_;  // by task
  std::vector<TimelineSequence> sequences_;
};

}  // namespace braid
