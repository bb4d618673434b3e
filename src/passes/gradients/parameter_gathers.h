#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ir/program.h"
#include "passes/rearrange.h"

namespace braid {

/// A gather of weights, with places in program order.
struct ParameterGather {
  static constexpr uint32_t kNone = BufferUses::kNone;

  uint32_t task = 0;
  /// The gather directly in front of it that brings what it reads, from parts of the shard that
  /// replicas update. Both start together.
  std::optional<uint32_t> before = std::nullopt;
  BufferId parts;  ///< what that one reads; not valid if there is none
  BufferRange from;
  BufferId to;
  bool is_step_buffer = false;
  bool is_of_step = false;     ///< once for all jobs: of weights that are updated in parts
  uint32_t first_use = kNone;  ///< first other task that touches what is gathered
  uint32_t last_use = kNone;
  size_t group = 0;

  uint32_t first_task() const { return before.value_or(task); }
};

/// Gathers in a row for one layer and job: of its FP8 copies, and of its other weights.
struct GatherGroup {
  size_t begin = 0;  ///< in the list of gathers
  uint32_t first_use = ParameterGather::kNone;
  uint32_t last_use = 0;
  int64_t bytes = 0;  ///< of its step buffers, as planned
};

/// The tasks that access each buffer of a program, as ascending positions.
class BufferAccesses {
 public:
  static constexpr uint32_t kNone = BufferUses::kNone;

  struct Access {
    uint32_t task;
    bool writes;
  };

  explicit BufferAccesses(const Program& program);

  std::span<const Access> of(BufferId buffer) const { return of_buffer_[buffer.index()]; }
  uint32_t first(BufferId buffer) const { return of(buffer).front().task; }
  uint32_t last(BufferId buffer) const { return of(buffer).back().task; }
  /// Position of the first access behind the task; kNone if there is none.
  uint32_t next(BufferId buffer, uint32_t task) const;
  /// Position of the last access in front of the task; kNone if there is none.
  uint32_t previous(BufferId buffer, uint32_t task) const;
  /// Position of the last write in front of the task; kNone if there is none.
  uint32_t previous_write(BufferId buffer, uint32_t task) const;
  bool is_written_behind(BufferId buffer, uint32_t task) const;

 private:
  std::vector<std::vector<Access>> of_buffer_;
};

/// All gathers of weights of a program that may move, in order: an all_gather of phase comm on a
/// compute stream that writes a whole buffer, of role gathered, which holds nothing else in the
/// step, or of role param. Without those that repeat one of the group before.
class ParameterGathers {
 public:
  /// The program must outlive this object.
  explicit ParameterGathers(const Program& program);

  const std::vector<ParameterGather>& list() const { return list_; }
  const GatherGroup& group(size_t index) const { return groups_[index]; }
  std::span<const GatherGroup> groups() const { return groups_; }
  std::span<const ParameterGather> of_group(size_t index) const {
    const size_t begin = groups_[index].begin;
    const size_t end = index + 1 < groups_.size() ? groups_[index + 1].begin : list_.size();
    return std::span(list_).subspan(begin, end - begin);
  }
  const BufferAccesses& accesses() const { return accesses_; }
  /// Gathers that are not needed: each with the buffer that already holds the same data.
  const std::vector<std::pair<ParameterGather, BufferId>>& repeated() const { return repeated_; }
  /// Whether both gather the same data into step buffers; `before` stands in front of the other.
  bool repeats(const ParameterGather& before, const ParameterGather& gather) const;

 private:
  void add(ParameterGather gather);
  std::vector<ParameterGather>::iterator group_begin();
  bool begins_group(const ParameterGather& gather);

  const Program& program_;
  BufferAccesses accesses_;
  std::vector<ParameterGather> list_;
  std::vector<GatherGroup> groups_;
  std::vector<std::pair<ParameterGather, BufferId>> repeated_;
};

/// The program without these gathers, whose readers read that buffer instead.
Program without_gathers(const Program& program,
                        std::span<const std::pair<ParameterGather, BufferId>> repeated);

}  // namespace braid
