#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ir/program.h"
#include "passes/analysis/step_values.h"

namespace braid {

/// Finds tasks with equal results because they apply the same spec to the same persistent range:
/// all-gathers of sharded weights, which the forward and the backward of a microbatch both run.
class Twins {
 public:
  static constexpr uint32_t kNone = StepValues::kNone;

  /// Both must outlive this object.
  Twins(const Program& program, const StepValues& values);

  /// Finds a task with the same result as the only writer of the buffer. Returns the last such
  /// backward task of the same microbatch and virtual stage in (after, before). kNone if there is
  /// none, or if the source is written between the writer and `before`.
  uint32_t find(BufferId buffer, uint32_t after, uint32_t before) const;
  /// The buffer that such a task writes.
  BufferId result_of(uint32_t task) const;

 private:
  /// Source and result of a task that reads one persistent range and writes a gathered buffer.
  struct Gather {
    BufferRange source;
    BufferId result;
  };
  struct Key {
    SpecId spec;
    int32_t microbatch;
    int32_t virtual_stage;
    BufferRange source;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct HashKey {
    size_t operator()(const Key& key) const;
  };

  /// The result is invalid if the task is not such a gather.
  Gather gather_of(uint32_t task) const;
  Key key_of(uint32_t task, const BufferRange& source) const;

  const Program& program_;
  const StepValues& values_;
  std::unordered_map<Key, std::vector<uint32_t>, HashKey> backward_;  // in ascending order
};

}  // namespace braid
