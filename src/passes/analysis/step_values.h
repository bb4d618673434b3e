#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.h"

namespace braid {

/// True for tasks that do not compute: copies to and from the host, and tasks that do nothing.
bool moves_value(const Program& program, const Task& task);

/// What the forward of a training step computes and which tasks read it. For passes that decide
/// where values are kept until the backward. Tasks are given by position. O(operands) time and
/// memory.
///
/// A block is one layer of one microbatch and virtual stage, or everything without a layer (-1).
/// Its forward ends with its last task of phase forward before its first task of phase dgrad or
/// wgrad, not counting tasks that only move values, or with the communication directly after that
/// task. The block's forward and comm tasks up to this end are forward. All other tasks count as
/// backward.
class StepValues {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Block {
    int32_t microbatch = -1;
    int32_t virtual_stage = -1;
    int32_t layer = -1;
    uint32_t first_dgrad = kNone;  ///< first task of phase dgrad or wgrad
    uint32_t forward_end = kNone;  ///< last forward task; kNone if it has none
    uint32_t last = 0;             ///< last task
  };

  /// Contents of a step buffer that holds only one value. All its writers must be forward tasks of
  /// one block, and no other task may read it before the last writer.
  struct Value {
    uint32_t block = kNone;           ///< kNone: the buffer is used differently, or not at all
    uint32_t last_forward = kNone;    ///< last forward task that accesses it
    uint32_t first_backward = kNone;  ///< first backward task that reads it; kNone if none does
    uint32_t last_backward = kNone;
    /// A backward task of another block reads it, so the value passes between layers.
    bool is_shared = false;

    bool is_value() const { return block != kNone; }
    bool is_kept() const { return is_value() && first_backward != kNone; }
  };

  /// The program must outlive this object, and its tasks and operands must not change.
  explicit StepValues(const Program& program);

  const std::vector<Block>& blocks() const { return blocks_; }
  /// Number of (microbatch, virtual stage) pairs with layers that run forward and backward; at
  /// least 1.
  int64_t num_backwards() const;
  uint32_t block_of(uint32_t task) const { return block_of_[task]; }
  bool is_forward(uint32_t task) const { return is_forward_[task]; }

  const Value& value(BufferId buffer) const { return values_[buffer.index()]; }
  /// Tasks that write the buffer or a part of it, ascending.
  std::span<const uint32_t> writers(BufferId buffer) const;
  /// True if a task in (after, until] writes the buffer.
  bool is_written_between(BufferId buffer, uint32_t after, uint32_t until) const;

 private:
  void find_blocks();
  void extend(Block& block, uint32_t task, uint32_t before);
  void find_forward();
  void find_writers();
  void find_values();
  void add_use(uint32_t task, BufferId buffer, bool is_writer);

  const Program& program_;
  std::vector<Block> blocks_;
  std::vector<uint32_t> block_of_;   // by task
  std::vector<bool> is_forward_;     // by task
  std::vector<uint32_t> row_begin_;  // by buffer: where its entries in writers_ begin
  std::vector<uint32_t> writers_;
  std::vector<Value> values_;  // by buffer
};

}  // namespace braid
