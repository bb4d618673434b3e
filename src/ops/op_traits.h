#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "ir/op_spec.h"

/// Traits of an op, so that passes, cost models and reports query the op instead of comparing
/// names.
namespace braid {

/// The resource that limits an op, which determines how its time depends on its shape.
enum class OpFamily : uint8_t {
  kGemm,         ///< one matrix product, possibly followed by an activation function
  kAttention,    ///< fused attention and its backward
  kMemoryBound,  ///< all other ops that compute or copy on the device
  kHostCopy,     ///< between device and host memory
  kNothing,      ///< only keeps a place in the order; takes no time
  kCommunication,
};

inline constexpr size_t kNumOpFamilies = 6;

/// The kind of an op for people, also within a layer.
enum class OpKind : uint8_t {
  kProduct,
  kAttention,   ///< all of it, including the rounding after attention over ranks
  kStateSpace,  ///< of a Mamba layer, with its convolution and norm
  kNorm,
  kElementwise,
  kRouting,  ///< of tokens to experts
  kEmbeddingAndLoss,
  kOptimizer,
  kCopy,
  kCommunication,
};

/// "matrix products", "attention", "state space", "norms", "elementwise", "routing", "embedding and
/// loss", "optimizer", "copies", "communication".
std::string_view op_kind_name(OpKind kind);

/// The role by which passes find an op that they rewrite.
enum class OpRole : uint8_t {
  kNone,
  kProduct,             ///< x, w, ... -> y; y = x w^T, the rows of w are the features of y
  kProductDgrad,        ///< dy, w -> dx of the same product
  kProductWgrad,        ///< x, dy -> dw of the same product
  kScaledProduct,       ///< x, its scales, w, its scales, ... -> y
  kScaledProductDgrad,  ///< the same for dx
  kScaledProductWgrad,  ///< the same for dw
  kTableWgrad,          ///< of rows that were looked up
  kGradientNorm,        ///< for one range of gradients
  kRotary,              ///< rotates packed qkv rows by their positions
  kAttention,           ///< forward over whole sequences
  kPackKv,              ///< packs the data that context ranks exchange
  kSplitHeads,          ///< splits rows into blocks of heads, or joins them
  kSwapBlocks,
};

inline constexpr size_t kNumOpRoles = 14;

/// The three products of a matrix, of any type of factors.
enum class ProductPart : uint8_t { kFprop, kDgrad, kWgrad };

/// What the GPU kernels of a memory-bound op take beside the time of their bytes at the rate of
/// large copies. As measured in steps on one H200 (bench/gpu/emulated_h200.md: medians of the large
/// tasks of all cases).
struct KernelRate {
  double part = 1;       ///< of that rate, for large operands
  int64_t least_ns = 0;  ///< however few bytes there are: chains of short loops or launches
};

/// The scales of FP8 factors (ops/quantize.h): none, one for all elements, one for each run of 128
/// along the depth and in one factor for each square of 128 x 128, one for each run of 128, or one
/// for each run of 32.
enum class FactorScales : uint8_t { kNone, kOne, kSquares, kRuns, kRunsOf32 };

/// The size that groups divide among them.
enum class GroupedSize : uint8_t { kRows, kDepth };

/// A product [rows, depth] x [depth, columns]; or as many as `groups`, each with a part of the rows
/// or of the depth, which are those of all groups together. How large the parts are is data; cost
/// models count with equal ones. The flops are 2 rows columns depth in any case.
struct GemmShape {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  DType dtype = DType::kF32;  ///< of the factors
  FactorScales scales = FactorScales::kNone;
  int64_t groups = 1;
  GroupedSize grouped = GroupedSize::kRows;

  friend bool operator==(const GemmShape&, const GemmShape&) = default;
};

struct AttentionShape {
  int64_t sequences = 0;
  int64_t sequence = 0;  ///< keys that a query may see
  int64_t queries = 0;   ///< per sequence; differs from `sequence` only for a step over a part of
                         ///< the pairs
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  bool backward = false;
  bool documents = false;  ///< documents of this mean length, or a window that hides as many keys
  DType dtype = DType::kF32;
};

enum class HostCopy : uint8_t { kToDevice, kToHost };

/// The dimension along which a task may be split.
enum class SplitDimension : uint8_t {
  kUndeclared,  ///< rejected by validate_op
  kNever,
  kRows,
  kFeatures,
};

/// How an op may be split into tasks that together have its meaning, in any order. A piece is a run
/// of leading rows of one operand; the others have as many, or an equal share of them.
struct SplitTraits {
  SplitDimension dimension = SplitDimension::kUndeclared;
  /// A piece is bitwise equal to that part of the whole. Not for products and attention, whose
  /// libraries choose a kernel by the size: for example OpenBLAS with f32 blocks of rows.
  bool keeps_bits = true;
  size_t counted = 0;  ///< the operand whose leading dimension is split
  /// Whether each piece has all of that operand; null: no operand.
  bool (*is_whole)(const OpSpec& spec, size_t operand) = nullptr;
  /// Whether the columns of that operand, a matrix, are split instead of its rows: scales of rows.
  /// They do not lie together, so a piece reads a copy of its columns. Null: no operand.
  bool (*has_columns)(const OpSpec& spec, size_t operand) = nullptr;
  /// Pieces begin at multiples of this; 0: this spec cannot be split. Null: 1.
  int64_t (*unit)(const OpSpec& spec) = nullptr;
  /// Sets the attributes and the last operands of a piece [begin, end) whose shapes are already
  /// split. Null: they are those of the whole.
  void (*narrow)(OpSpec& piece, int64_t begin, int64_t end) = nullptr;
};

inline constexpr SplitTraits kNeverSplit{.dimension = SplitDimension::kNever};
inline constexpr SplitTraits kSplitByRows{.dimension = SplitDimension::kRows};

/// By rows; every piece has the whole operands [first, end), such as weights.
template <size_t kFirst, size_t kEnd>
constexpr SplitTraits rows_but_operands() {
  return {.dimension = SplitDimension::kRows, .is_whole = [](const OpSpec&, size_t operand) {
            return operand >= kFirst && operand < kEnd;
          }};
}

/// Operands of a piece begin at multiples of this many elements: for 1-byte elements, this is the
/// 16-byte alignment that kernels require.
inline constexpr int64_t kAlignedElems = 16;

/// Consecutive rows of a task, from `begin` on, that are numbered from `index` on.
struct RowRun {
  int64_t begin = 0;
  int64_t index = 0;
};

/// What else the check of tasks in pieces needs, beside SplitTraits: which element of a whole task
/// an element of a piece is.
struct PieceTraits {
  /// For an op that is never split although some operands have rows: whether each row of this
  /// operand belongs to the same row of the others. Results without such rows depend on all rows.
  bool (*is_by_row)(const OpSpec& spec, size_t operand) = nullptr;
  /// If results depend on the number of a row: these numbers, which are those of the whole task.
  std::vector<RowRun> (*row_runs)(const OpSpec& spec) = nullptr;
  /// Removes attributes that differ between pieces and say nothing but `row_runs`.
  void (*forget_piece)(OpSpec& spec) = nullptr;
  /// The number of blocks of an operand that have a part of each row: block after block. Null: 1.
  int64_t (*row_blocks)(const OpSpec& spec, size_t operand) = nullptr;
  /// For an op that only copies equal blocks: by block of the last operand, the block of the first.
  /// Empty: what the op writes counts as new.
  std::vector<int64_t> (*block_sources)(const OpSpec& spec) = nullptr;
};

/// For an op whose result a quantize task can make itself and round to FP8 (ops/quantize.h). The
/// result has the rows and the dtype of the op's first operand.
struct SourceTraits {
  size_t num_operands = 0;    ///< of the op; 0: no quantize task can do it
  size_t result = 0;          ///< the operand that is rounded instead of being stored
  int64_t width_divisor = 1;  ///< the width of the first operand, by that of the result
  /// An element depends on its whole row. So the task reads the values twice, and the first pass
  /// can find the largest magnitude.
  bool needs_rows = false;
};

/// How the output values of an op depend on its inputs.
enum class ValueRule : uint8_t {
  kComputed,  ///< on all operands that it reads, and on its attributes
  kMoved,     ///< x -> y: y has the values of x
  kByRow,     ///< each row of the last operand depends only on that row of the others, with the
              ///< same bits at any position
  kOfParts,   ///< those of the two ops that it replaces (linear_swiglu.h)
  kSum,       ///< the last operand is the sum of the others, element by element
  kColumns,   ///< the last operand has the columns of the others, side by side
};

/// What the tally of an op counts (ops/tally.h).
enum class TallyKind : uint8_t {
  kNone,
  kFp8Losses,   ///< what FP8 copies lose: Fp8Tally (ops/quantize.h)
  kExpertRows,  ///< the rows of each expert (ops/expert_rows.h)
  kRowRoom,     ///< rows that came to a rank, and its room: RoomTally (ops/expert_exchange.h)
};

inline constexpr size_t kNumTallyKinds = 4;

/// The kinds of communication; meanings in ops/collectives.h and ops/expert_exchange.h.
enum class CommOp : uint8_t {
  kAllReduce,
  kAllReduceMax,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kRingShift,
  kSend,
  kRecv,
  kDispatchRows,
  kCombineRows,
};

inline constexpr size_t kNumCommOps = 12;

/// Sizes of x and y of one rank in a group of n.
enum class CommShape : uint8_t {
  kSame,     ///< equal sizes
  kGather,   ///< y consists of n blocks like x
  kScatter,  ///< x consists of n blocks like y
  kBlocks,   ///< equal sizes, n blocks each
  kMessage,  ///< one of the two: the other end has the other
  kRows,     ///< any sizes: which rows go where is data (ops/expert_exchange.h)
};

/// The engines, besides multiprocessors, that can do a whole communication. Ops that add need
/// multiprocessors.
enum class CommCopies : uint8_t {
  kNone,
  kCopyEngine,       ///< copy engines driven by braid
  kCopyEngineOrNccl  ///< also copy engines driven by NCCL 2.28
};

struct Communication {
  CommOp op = CommOp::kAllReduce;
  CommShape shape = CommShape::kSame;
  bool sums = false;  ///< adds the elements of ranks, or takes their maxima
  /// No rank's call ends before every rank's call has begun.
  bool waits_for_all = false;
  CommCopies copies = CommCopies::kNone;

  bool is_message() const { return shape == CommShape::kMessage; }
};

}  // namespace braid
