#include "checkpoint/tensor_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>

#include "base/errors.h"
#include "base/expect_error.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

/// Two files: a matrix in two halves of its columns, a vector whole, and a matrix cut anywhere.
TensorIndex sample() {
  return {
      .files = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
      .tensors = {{"a", DType::kF32, {3, 4}, {{0, {0, 3, 2}}, {1, {2, 3, 2}}}},
                  {"b", DType::kF32, {5}, {{1, {0, 1, 5}}}},
                  {"c", DType::kBF16, {4, 3}, {{1, {0, 1, 2}}, {0, {2, 1, 8}}, {1, {10, 1, 2}}}}}};
}

std::string fault_of(std::string_view text) {
  return message_of<DataError>([&] { parse_index(text, "index.json"); });
}

std::string replaced(const std::string& part, const std::string& other) {
  std::string text = print_index(sample());
  const size_t found = text.find(part);
  EXPECT_NE(found, std::string::npos) << part;
  return text.replace(found, part.size(), other);
}

TEST(TensorIndex, ParsesWhatItPrints) {
  EXPECT_EQ(parse_index(print_index(sample()), "index.json"), sample());
  EXPECT_EQ(parse_index(print_index({}), "index.json"), TensorIndex());
}

TEST(TensorIndex, HasALinePerTensor) {
  EXPECT_THAT(print_index(sample()),
              HasSubstr("\n{\"name\":\"a\",\"dtype\":\"f32\",\"shape\":[3,4],\"pieces\":[[0,0,3,2],"
                        "[1,2,3,2]]},\n"));
}

// A piece as a list of elements, in the order of its runs, against any part of a tensor of 30.
TEST(PieceRange, OverlapsAreThoseOfItsElements) {
  struct Case {
    PieceRange range;
    int64_t pitch;
  };
  for (const auto& [range, pitch] :
       {Case{{0, 1, 30}, 5}, {{7, 1, 12}, 5}, {{1, 6, 2}, 5}, {{3, 3, 4}, 8}, {{4, 2, 1}, 25}}) {
    std::vector<int64_t> elements;
    for (int64_t i = 0; i < range.num_elems(); ++i) {
      elements.push_back(range.begin + i / range.run_elems * pitch + i % range.run_elems);
    }
    EXPECT_EQ(range.end(pitch), elements.back() + 1);
    for (int64_t begin = 0; begin <= 30; ++begin) {
      for (int64_t end = begin; end <= 30; ++end) {
        std::vector<int64_t> expected;
        std::ranges::copy_if(elements, std::back_inserter(expected),
                             [&](int64_t element) { return element >= begin && element < end; });
        std::vector<int64_t> found;
        for_each_overlap(range, pitch, begin, end, [&](int64_t piece, int64_t at, int64_t count) {
          for (int64_t i = 0; i < count; ++i) {
            EXPECT_EQ(elements.at(static_cast<size_t>(piece + i)), at + i);
            found.push_back(at + i);
          }
        });
        EXPECT_EQ(found, expected) << range.begin << " from " << begin << " to " << end;
      }
    }
  }
}

TEST(TensorIndex, IsMadeOfWhatWritersWrite) {
  std::vector<std::vector<TensorPiece>> pieces(2);
  for (const StoredTensor& tensor : sample().tensors) {
    for (const StoredPiece& piece : tensor.pieces) {
      pieces[piece.file].push_back({tensor.name, tensor.dtype, tensor.shape, piece.range});
    }
  }
  const std::vector<std::span<const TensorPiece>> spans(pieces.begin(), pieces.end());
  TensorIndex made = make_index(sample().files, spans);
  std::swap(made.tensors[1], made.tensors[2]);  // c is in the first file, b only in the second
  EXPECT_EQ(made, sample());
  pieces[1].pop_back();
  const std::vector<std::span<const TensorPiece>> fewer(pieces.begin(), pieces.end());
  EXPECT_THAT(message_of<InternalError>([&] { make_index(sample().files, fewer); }),
              HasSubstr("the pieces of tensor \"c\" have only 10 elements"));
}

TEST(PieceShape, IsThatOfRowsAndBlocksWherePossible) {
  const Shape shape{6, 2, 4};
  EXPECT_EQ(piece_shape(shape, whole_range(shape)), shape);
  EXPECT_EQ(piece_shape(shape, {8, 1, 24}), (Shape{3, 2, 4}));
  EXPECT_EQ(piece_shape(shape, {8, 1, 23}), (Shape{23}));
  EXPECT_EQ(piece_shape(shape, {3, 6, 5}), (Shape{6, 5}));
  EXPECT_EQ(piece_shape({7}, {2, 1, 4}), (Shape{4}));
  EXPECT_EQ(piece_name("w", shape, whole_range(shape)), "w");
  EXPECT_EQ(piece_name("w", shape, {8, 1, 24}), "w@8");
}

/// By painting every element.
bool covers_by_painting(const StoredTensor& tensor) {
  const int64_t elems = tensor.shape.num_elems();
  std::vector<int> painted(static_cast<size_t>(elems), 0);
  for (const StoredPiece& piece : tensor.pieces) {
    const PieceRange& range = piece.range;
    const int64_t pitch = row_elems(tensor.shape);
    if (range.num_runs > 1 && range.begin % pitch + range.run_elems > pitch) {
      return false;
    }
    for (int64_t run = 0; run < range.num_runs; ++run) {
      for (int64_t i = 0; i < range.run_elems; ++i) {
        const int64_t at = range.begin + run * pitch + i;
        if (at >= elems || painted[static_cast<size_t>(at)]++ > 0) {
          return false;
        }
      }
    }
  }
  return std::count(painted.begin(), painted.end(), 1) == elems;
}

/// Cuts [3..6] x [1..6] into random blocks and runs, and then often spoils it.
StoredTensor random_tensor(std::mt19937& random) {
  const auto below = [&](int64_t limit) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(limit));
  };
  StoredTensor tensor{"t", DType::kF32, {3 + below(4), 1 + below(6)}, {}};
  const int64_t rows = tensor.shape[0];
  const int64_t columns = tensor.shape[1];
  const int64_t flat_rows = below(rows + 1);
  for (int64_t at = 0; at < flat_rows * columns;) {
    const int64_t size = std::min(1 + below(2 * columns), flat_rows * columns - at);
    tensor.pieces.push_back({0, {at, 1, size}});
    at += size;
  }
  for (int64_t column = 0; column < columns && flat_rows < rows;) {
    const int64_t size = 1 + below(columns - column);
    tensor.pieces.push_back({1, {flat_rows * columns + column, rows - flat_rows, size}});
    column += size;
  }
  StoredPiece& spoiled =
      tensor.pieces[static_cast<size_t>(below(static_cast<int64_t>(tensor.pieces.size())))];
  switch (below(6)) {
    case 0:
      spoiled.range.begin += 1;
      break;
    case 1:
      spoiled.range.run_elems += 1;
      break;
    case 2:
      spoiled.range.num_runs += 1;
      break;
    default:
      break;
  }
  return tensor;
}

TEST(FaultOfPieces, FindsWhatPaintingFinds) {
  std::mt19937 random(11);
  int num_good = 0;
  for (int i = 0; i < 20000; ++i) {
    const StoredTensor tensor = random_tensor(random);
    const bool good = fault_of_pieces(tensor).empty();
    num_good += good ? 1 : 0;
    ASSERT_EQ(good, covers_by_painting(tensor)) << print_index({{"f", "g"}, {tensor}});
  }
  EXPECT_GT(num_good, 5000);
  EXPECT_LT(num_good, 15000);
}

TEST(TensorIndex, RefusesPiecesThatDoNotFit) {
  EXPECT_EQ(fault_of(replaced("[1,2,3,2]", "[1,1,3,2]")),
            "'index.json' is not a valid tensor index: pieces of tensor \"a\" overlap");
  EXPECT_THAT(fault_of(replaced("[1,2,3,2]", "[1,2,4,2]")),
              HasSubstr("a piece of tensor \"a\" is outside its shape [3,4]"));
  EXPECT_THAT(fault_of(replaced("[1,2,3,2]", "[1,2,2,2]")),
              HasSubstr("the pieces of tensor \"a\" have only 10 elements of its shape [3,4]"));
  EXPECT_THAT(fault_of(replaced("[1,0,1,5]]", "[1,0,1,5],[0,0,1,1]]")),
              HasSubstr("have more than the 5 elements of its shape [5]"));
  EXPECT_THAT(fault_of(replaced("[1,2,3,2]", "[2,2,3,2]")),
              HasSubstr("a piece of tensor \"a\" is not [file, begin, runs, run]"));
  EXPECT_THAT(fault_of(replaced("[1,2,3,2]", "[1,2,3]")), HasSubstr("is not [file, begin"));
  EXPECT_THAT(fault_of(replaced("[1,2,3,2]", "[1,-2,3,2]")), HasSubstr("that is not a count"));
  EXPECT_THAT(fault_of(replaced("[1,2,3,2]", "[1,18446744073709551615,3,2]")),
              HasSubstr("that is not a count"));
}

TEST(TensorIndex, RefusesOtherFiles) {
  EXPECT_THAT(fault_of(""), HasSubstr("not JSON at byte"));
  EXPECT_THAT(fault_of("[]"), HasSubstr("does not have the format"));
  EXPECT_THAT(fault_of("1e999"), HasSubstr("out of range"));
  EXPECT_THAT(fault_of(fmt::format("{{\"format\":{}{}}}", std::string(100'000, '['),
                                   std::string(100'000, ']'))),
              HasSubstr("deeper than 64"));
  EXPECT_THAT(fault_of(replaced("\"files\"", "\"names\"")), HasSubstr("\"files\" is missing"));
  EXPECT_THAT(fault_of(replaced("model-00001", "../model")),
              HasSubstr("is not the name of a file"));
  EXPECT_THAT(fault_of(replaced("\"f32\"", "\"f31\"")), HasSubstr("unknown dtype \"f31\""));
  EXPECT_THAT(fault_of(replaced("[3,4]", "[1,1,1,1,1,1]")), HasSubstr("6 dimensions, at most 5"));
  EXPECT_THAT(fault_of(replaced("[3,4]", "[4294967296,4294967296]")), HasSubstr("too large"));
}

TEST(TensorIndex, AnyFlippedByteIsReadOrRefused) {
  const std::string good = print_index(sample());
  std::mt19937 random(1);
  for (size_t position = 0; position < good.size(); ++position) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::string bad = good;
      bad[position] = static_cast<char>(random());
      try {
        for (const StoredTensor& tensor : parse_index(bad, "index.json").tensors) {
          ASSERT_TRUE(covers_by_painting(tensor));
        }
      } catch (const DataError&) {
      }
    }
  }
}

}  // namespace
}  // namespace braid
