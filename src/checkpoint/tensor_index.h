#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"

/// An index of the tensor parts in the files of a checkpoint.
namespace braid {

inline constexpr std::string_view kIndexFile = "index.json";

/// Elements of a whole tensor, row-major: `num_runs` runs of `run_elems` each, the first from
/// `begin`, each next one a row (`row_elems`) later. A single run may cross rows; several runs each
/// stay inside one row. So a range of a flat array, and a block of a matrix, are one piece each. In
/// a file the runs are contiguous.
struct PieceRange {
  int64_t begin = 0;
  int64_t num_runs = 1;
  int64_t run_elems = 0;

  int64_t num_elems() const { return num_runs * run_elems; }
  /// The position after the last element; `pitch` is row_elems.
  int64_t end(int64_t pitch) const { return begin + (num_runs - 1) * pitch + run_elems; }
  friend bool operator==(const PieceRange&, const PieceRange&) = default;
};

/// Elements per index of the first dimension; 1 for vectors and scalars.
int64_t row_elems(const Shape& shape);
/// The range of the whole tensor.
PieceRange whole_range(const Shape& shape);

/// Rows [row_begin, row_end) x columns [column_begin, column_end) of a tensor as a matrix of
/// `row_elems` columns.
struct MatrixBlock {
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t column_begin = 0;
  int64_t column_end = 0;

  int64_t area() const { return (row_end - row_begin) * (column_end - column_begin); }
};

/// Appends a piece as up to three blocks: the end of a row, whole rows, the beginning of a row.
void add_blocks(const PieceRange& range, int64_t columns, std::vector<MatrixBlock>& blocks);

/// Calls visit(of_piece, of_tensor, count) for each run of elements of a piece within elements
/// [begin, end) of the tensor, ascending: they are [of_piece, of_piece + count) of the piece and
/// [of_tensor, of_tensor + count) of the tensor. `pitch` is the distance between the beginnings of
/// runs, in elements of the tensor.
template <class Visit>
void for_each_overlap(const PieceRange& range, int64_t pitch, int64_t begin, int64_t end,
                      const Visit& visit) {
  const int64_t before = begin - range.begin - range.run_elems;  // >= 0: the first run is not
                                                                 // needed
  for (int64_t run = before < 0 ? 0 : before / pitch + 1; run < range.num_runs; ++run) {
    const int64_t run_begin = range.begin + run * pitch;
    if (run_begin >= end) {
      return;
    }
    const int64_t from = std::max(begin, run_begin);
    const int64_t to = std::min(end, run_begin + range.run_elems);
    if (from < to) {
      visit(run * range.run_elems + from - run_begin, from, to - from);
    }
  }
}

/// A piece to write.
struct TensorPiece {
  std::string tensor;
  DType dtype = DType::kF32;
  Shape shape;  ///< of the whole tensor
  PieceRange range;
};

/// The name of a piece in its file: the tensor's, with "@begin" appended unless it is the whole
/// tensor.
std::string piece_name(std::string_view tensor, const Shape& shape, const PieceRange& range);
/// Its shape in its file: the tensor's shape for the whole tensor, [rows, ...] for whole rows,
/// [runs, run] for a block, otherwise a vector.
Shape piece_shape(const Shape& shape, const PieceRange& range);

struct StoredPiece {
  size_t file = 0;  ///< index into TensorIndex::files
  PieceRange range;

  friend bool operator==(const StoredPiece&, const StoredPiece&) = default;
};

struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<StoredPiece> pieces;  ///< ascending begin

  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

struct TensorIndex {
  std::vector<std::string> files;
  std::vector<StoredTensor> tensors;

  friend bool operator==(const TensorIndex&, const TensorIndex&) = default;
};

/// The index of several writers' pieces; `pieces[i]` go to `files[i]`; tensors in the order of
/// their first pieces. Throws InternalError unless the pieces hold each element of their tensors
/// once.
TensorIndex make_index(std::vector<std::string> files,
                       std::span<const std::span<const TensorPiece>> pieces);

/// The index as JSON.
std::string print_index(const TensorIndex& index);

/// Inverse of `print_index`. Throws DataError naming `path` unless the text is such an index, and
/// the pieces hold each element of their tensors once.
TensorIndex parse_index(std::string_view text, std::string_view path);

/// An error in the pieces of a tensor; empty if they hold each element once. Time: n log n in the
/// number of pieces, for any sizes.
std::string fault_of_pieces(const StoredTensor& tensor);

}  // namespace braid
