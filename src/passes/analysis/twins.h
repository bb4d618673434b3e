#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ir/program.h"
#include "passes/analysis/step_values.h"

namespace braid {

/// Tasks that give the same result because they are the same function of the same persistent
/// buffer: gathers of sharded weights, which forward and backward of a microbatch make each for
/// themselves.
class Twins {
 public:
  static constexpr uint32_t kNone = StepValues::kNone;

  /// Both must outlive this.
  Twins(const Program& program, const StepValues& values);

  /// The last twin of the buffer's one writer among the backward tasks of its microbatch and
  /// virtual stage in (after, before), its source not written in between; kNone if there is none.
  uint32_t find(BufferId buffer, uint32_t after, uint32_t before) const;
  /// What such a task writes.
  BufferId result_of(uint32_t task) const;

 private:
  /// Source and result of a task that reads one persistent range and makes a gathered buffer.
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

  /// Its result has no buffer (invalid) if the task is something else.
  Gather gather_of(uint32_t task) const;
  Key key_of(uint32_t task, const BufferRange& source) const;

  const Program& program_;
  const StepValues& values_;
  std::unordered_map<Key, std::vector<uint32_t>, HashKey> backward_;  // ascending
};

}  // namespace braid
