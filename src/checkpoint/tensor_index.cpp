#include "checkpoint/tensor_index.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"

namespace braid {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kFormat = "braid tensor index";
constexpr size_t kMaxQuotedBytes = 80;
constexpr int64_t kMaxElems = int64_t{1} << 56;  // products with the size of an element fit into 64
                                                 // bits

/// Whether two blocks share an element: a sweep over the rows; the columns of the blocks in each
/// row must be disjoint.
bool overlap(const std::vector<MatrixBlock>& blocks) {
  struct Event {
    int64_t row;
    bool begins;  // ends sort before begins
    const MatrixBlock* block;
  };
  std::vector<Event> events;
  for (const MatrixBlock& block : blocks) {
    events.push_back({block.row_begin, true, &block});
    events.push_back({block.row_end, false, &block});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::pair(a.row, a.begins) < std::pair(b.row, b.begins);
  });
  std::map<int64_t, int64_t> active;  // end by begin
  for (const Event& event : events) {
    if (!event.begins) {
      active.erase(event.block->column_begin);
      continue;
    }
    const auto next = active.lower_bound(event.block->column_begin);
    const bool hits_next = next != active.end() && next->first < event.block->column_end;
    const bool hits_previous =
        next != active.begin() && std::prev(next)->second > event.block->column_begin;
    if (hits_next || hits_previous) {
      return true;
    }
    active.emplace_hint(next, event.block->column_begin, event.block->column_end);
  }
  return false;
}

/// Whether the piece is inside the tensor, and blocks are inside their rows.
bool is_inside(const PieceRange& range, const Shape& shape) {
  const int64_t elems = shape.num_elems();
  const int64_t columns = row_elems(shape);
  if (range.begin < 0 || range.begin >= elems || range.run_elems < 1 || range.num_runs < 1 ||
      range.run_elems > elems - range.begin) {
    return false;
  }
  return range.num_runs == 1 || (range.num_runs <= shape[0] - range.begin / columns &&
                                 range.run_elems <= columns - range.begin % columns);
}

void sort_pieces(StoredTensor& tensor) {
  std::sort(tensor.pieces.begin(), tensor.pieces.end(),
            [](const StoredPiece& a, const StoredPiece& b) {
              return std::pair(a.range.begin, a.file) < std::pair(b.range.begin, b.file);
            });
}

/// Parses one index; every error is a DataError that names the file.
class IndexReader {
 public:
  explicit IndexReader(std::string_view path) : path_(path) {}

  TensorIndex read(std::string_view text) const {
    const json root = parse_json(text, fmt::format("'{}'", path_));
    if (!root.is_object() || root.value("format", json()) != kFormat) {
      fail("it does not have the format \"{}\"", kFormat);
    }
    TensorIndex index;
    for (const json& file : member(root, "files", json::value_t::array)) {
      index.files.push_back(file_name(file));
    }
    for (const json& tensor : member(root, "tensors", json::value_t::array)) {
      index.tensors.push_back(read_tensor(tensor, index.files.size()));
    }
    return index;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw_data_error("'{}' is not a valid tensor index: {}", path_,
                     fmt::format(format, std::forward<Args>(args)...));
  }

  const json& member(const json& object, const char* name, json::value_t type) const {
    const auto found = object.is_object() ? object.find(name) : object.end();
    if (!object.is_object() || found == object.end() || found->type() != type) {
      fail("\"{}\" is missing or of another type", name);
    }
    return *found;
  }

  std::string file_name(const json& value) const {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    if (name.empty() || name.starts_with('.') || name.find('/') != std::string::npos) {
      fail("{} is not the name of a file beside it", quote(name, kMaxQuotedBytes));
    }
    return name;
  }

  std::vector<int64_t> numbers(const json& value, const std::string& title) const {
    std::vector<int64_t> list;
    for (const json& number : value) {
      if (!number.is_number_unsigned() || number.get<uint64_t>() > uint64_t{kMaxElems}) {
        fail("tensor {} holds a number that is not a count", title);
      }
      list.push_back(number.get<int64_t>());
    }
    return list;
  }

  Shape shape_of(const json& value, const std::string& title) const {
    const std::vector<int64_t> dims = numbers(value, title);
    if (dims.size() > static_cast<size_t>(Shape::kMaxRank)) {
      fail("tensor {} has {} dimensions, at most {} are supported", title, dims.size(),
           Shape::kMaxRank);
    }
    Shape shape;
    int64_t elems = 1;
    for (const int64_t dim : dims) {
      shape.push_back(dim);
      if (__builtin_mul_overflow(elems, std::max<int64_t>(1, dim), &elems) || elems > kMaxElems) {
        fail("tensor {} is too large", title);
      }
    }
    return shape;
  }

  StoredTensor read_tensor(const json& value, size_t num_files) const {
    StoredTensor tensor;
    tensor.name = member(value, "name", json::value_t::string).get<std::string>();
    const std::string title = quote(tensor.name, kMaxQuotedBytes);
    const std::string dtype = member(value, "dtype", json::value_t::string).get<std::string>();
    const std::optional<DType> known = parse_dtype(dtype);
    if (!known) {
      fail("tensor {} has the unknown dtype {}", title, quote(dtype, kMaxQuotedBytes));
    }
    tensor.dtype = *known;
    tensor.shape = shape_of(member(value, "shape", json::value_t::array), title);
    for (const json& piece : member(value, "pieces", json::value_t::array)) {
      const std::vector<int64_t> parts =
          piece.is_array() ? numbers(piece, title) : std::vector<int64_t>();
      if (parts.size() != 4 || static_cast<size_t>(parts[0]) >= num_files) {
        fail("a piece of tensor {} is not [file, begin, runs, run]", title);
      }
      tensor.pieces.push_back({static_cast<size_t>(parts[0]), {parts[1], parts[2], parts[3]}});
    }
    sort_pieces(tensor);
    const std::string fault = fault_of_pieces(tensor);
    if (!fault.empty()) {
      fail("{}", fault);
    }
    return tensor;
  }

  std::string_view path_;
};

}  // namespace

void add_blocks(const PieceRange& range, int64_t columns, std::vector<MatrixBlock>& blocks) {
  const int64_t row = range.begin / columns;
  const int64_t column = range.begin % columns;
  if (range.num_runs > 1 || column + range.run_elems <= columns) {
    blocks.push_back({row, row + range.num_runs, column, column + range.run_elems});
    return;
  }
  const int64_t end = range.begin + range.run_elems;
  const int64_t full_begin = column == 0 ? row : row + 1;
  const int64_t full_end = end / columns;
  if (column != 0) {
    blocks.push_back({row, row + 1, column, columns});
  }
  if (full_begin < full_end) {
    blocks.push_back({full_begin, full_end, 0, columns});
  }
  if (end % columns != 0) {
    blocks.push_back({full_end, full_end + 1, 0, end % columns});
  }
}

int64_t row_elems(const Shape& shape) {
  int64_t elems = 1;
  for (int axis = 1; axis < shape.rank(); ++axis) {
    elems *= shape[axis];
  }
  return elems;
}

PieceRange whole_range(const Shape& shape) {
  return {.begin = 0, .num_runs = 1, .run_elems = shape.num_elems()};
}

std::string piece_name(std::string_view tensor, const Shape& shape, const PieceRange& range) {
  return range == whole_range(shape) ? std::string(tensor)
                                     : fmt::format("{}@{}", tensor, range.begin);
}

Shape piece_shape(const Shape& shape, const PieceRange& range) {
  if (range == whole_range(shape)) {
    return shape;
  }
  if (range.num_runs > 1) {
    return {range.num_runs, range.run_elems};
  }
  const int64_t columns = row_elems(shape);
  if (shape.rank() < 2 || range.begin % columns != 0 || range.run_elems % columns != 0) {
    return {range.run_elems};
  }
  Shape rows = shape;
  rows[0] = range.run_elems / columns;
  return rows;
}

std::string fault_of_pieces(const StoredTensor& tensor) {
  const std::string title = quote(tensor.name, kMaxQuotedBytes);
  std::vector<MatrixBlock> blocks;
  int64_t area = 0;
  for (const StoredPiece& piece : tensor.pieces) {
    if (!is_inside(piece.range, tensor.shape)) {
      return fmt::format("a piece of tensor {} is outside its shape {}", title,
                         to_string(tensor.shape));
    }
    const size_t first = blocks.size();
    add_blocks(piece.range, row_elems(tensor.shape), blocks);
    for (size_t i = first; i < blocks.size(); ++i) {
      area += blocks[i].area();
    }
    if (area > tensor.shape.num_elems()) {
      break;
    }
  }
  if (area != tensor.shape.num_elems()) {
    return fmt::format("the pieces of tensor {} have {} {} elements of its shape {}", title,
                       area > tensor.shape.num_elems() ? "more than the" : "only",
                       std::min(area, tensor.shape.num_elems()), to_string(tensor.shape));
  }
  return overlap(blocks) ? fmt::format("pieces of tensor {} overlap", title) : "";
}

TensorIndex make_index(std::vector<std::string> files,
                       std::span<const std::span<const TensorPiece>> pieces) {
  TensorIndex index{.files = std::move(files), .tensors = {}};
  check(index.files.size() == pieces.size(), "{} files for {} writers", index.files.size(),
        pieces.size());
  std::unordered_map<std::string_view, size_t> by_name;
  for (size_t file = 0; file < pieces.size(); ++file) {
    for (const TensorPiece& piece : pieces[file]) {
      const auto [place, is_new] = by_name.emplace(piece.tensor, index.tensors.size());
      if (is_new) {
        index.tensors.push_back({piece.tensor, piece.dtype, piece.shape, {}});
      }
      StoredTensor& tensor = index.tensors[place->second];
      check(tensor.dtype == piece.dtype && tensor.shape == piece.shape,
            "the pieces of tensor {} contradict each other", piece.tensor);
      tensor.pieces.push_back({file, piece.range});
    }
  }
  for (StoredTensor& tensor : index.tensors) {
    sort_pieces(tensor);
    const std::string fault = fault_of_pieces(tensor);
    check(fault.empty(), "{}", fault);
  }
  return index;
}

std::string print_index(const TensorIndex& index) {
  // A line per tensor, because people read this file.
  std::string text = fmt::format("{{\"format\": \"{}\",\n\"files\": {},\n\"tensors\": [", kFormat,
                                 json(index.files).dump());
  for (const StoredTensor& tensor : index.tensors) {
    ordered_json entry = {{"name", tensor.name},
                          {"dtype", dtype_name(tensor.dtype)},
                          {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
                          {"pieces", ordered_json::array()}};
    for (const StoredPiece& piece : tensor.pieces) {
      entry["pieces"].push_back(
          {piece.file, piece.range.begin, piece.range.num_runs, piece.range.run_elems});
    }
    text += fmt::format("{}\n{}", &tensor == index.tensors.data() ? "" : ",", entry.dump());
  }
  return text + "\n]}\n";
}

TensorIndex parse_index(std::string_view text, std::string_view path) {
  return IndexReader(path).read(text);
}

}  // namespace braid
