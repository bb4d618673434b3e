#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "ir/program.h"

namespace braid {

/// Consecutive elements of one value.
struct ValuePiece {
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t value = 0;  ///< 0: undefined
  int64_t first = 0;   ///< index, in the value, of the element at `begin`
  /// For rows that are spread over the ranks of a group (piece_interpreter.h): how much larger
  /// `first` is at this place on the next rank. 0: the same elements on every rank, or values that
  /// are not spread. kUnknownStride: rows from another rank, spread in a way not yet known.
  int64_t stride = 0;
  int64_t origin = 0;  ///< with a stride: `first` of the first element on the first rank
  TaskId maker = {};   ///< invalid: defined before the step. Not part of the meaning

  bool is_same(const ValuePiece& other) const {
    return begin == other.begin && end == other.end && value == other.value && first == other.first;
  }
};

inline constexpr int64_t kUnknownStride = -1;

/// The part [begin, end) of a piece.
ValuePiece part_of(ValuePiece piece, int64_t begin, int64_t end);

/// The pieces of [begin, end); positions count from `begin`.
std::vector<ValuePiece> pieces_in(const std::vector<ValuePiece>& pieces, int64_t begin,
                                  int64_t end);

/// Appends a piece, merged with the last one if it continues its value.
void append_piece(std::vector<ValuePiece>& pieces, const ValuePiece& piece);

/// The elements of one buffer, as adjacent pieces.
class ValuePieces {
 public:
  ValuePieces(int64_t num_elems, uint64_t value)
      : pieces_{{.begin = 0, .end = num_elems, .value = value}} {}

  /// Returns the pieces of [begin, end), as few as possible.
  std::vector<ValuePiece> read(int64_t begin, int64_t end) const;

  /// Replaces [begin, end) by `pieces`, which must fill it.
  void write(int64_t begin, int64_t end, std::span<const ValuePiece> pieces);

 private:
  std::vector<ValuePiece>::const_iterator piece_at(int64_t element) const;

  std::vector<ValuePiece> pieces_;
};

/// The values of all buffers of a program while it is interpreted, and the names of its messages.
class ValueStore {
 public:
  /// Persistent buffers hold a value of their own, step buffers none. The program must outlive this
  /// object.
  explicit ValueStore(const Program& program);

  /// Back to the state before the first task.
  void reset();

  const Program& program() const { return program_; }

  std::vector<ValuePiece> read(const BufferRange& range) const;
  /// Positions count from the first element of the range.
  std::vector<ValuePiece> read_from_begin(const BufferRange& range) const;

  void write(const BufferRange& range, uint64_t value, TaskId maker);
  /// Positions in `pieces` count from the first element of the range.
  void write_pieces(const BufferRange& range, std::vector<ValuePiece> pieces);
  void move(const BufferRange& from, const BufferRange& to);

  /// Identifies a message of the step by `hash` and its label, independent of task order. Messages
  /// with equal labels are numbered in program order.
  uint64_t message(uint64_t hash, const Label& label);

 private:
  const Program& program_;
  std::vector<ValuePieces> contents_;  // by buffer
  std::unordered_map<uint64_t, uint64_t> num_messages_;
};

/// Whether the spec communicates in a group of one rank.
bool is_alone_in_group(const Program& program, const OpSpec& spec);
/// Returns 0 if the spec has no group.
int64_t ranks_of_group(const Program& program, const OpSpec& spec);
/// Whether the op reads x and writes y, both of one dtype.
bool is_x_to_y(const OpSpec& spec);

}  // namespace braid
