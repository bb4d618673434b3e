#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/dtype.h"
#include "ir/op_spec.h"

/// What an op says about itself besides its operands, so that passes, cost models and reports ask
/// the op instead of comparing names.
namespace braid {

/// What bounds an op, hence how its time follows from its shape.
enum class OpFamily : uint8_t {
  kGemm,         ///< one matrix product, also with an activation function behind it
  kAttention,    ///< fused attention and its backward
  kMemoryBound,  ///< everything else that computes or copies on the device
  kHostCopy,     ///< between device and host memory
  kNothing,      ///< keeps a place in the order, and takes no time
  kCommunication,
};

inline constexpr size_t kNumOpFamilies = 6;

/// What kind of work an op is for a reader, and in a layer.
enum class OpKind : uint8_t {
  kProduct,
  kAttention,  ///< all of it, the rounding behind attention over ranks included
  kNorm,
  kElementwise,
  kEmbeddingAndLoss,
  kOptimizer,
  kCopy,
  kCommunication,
};

/// "matrix products", "attention", "norms", "elementwise", "embedding and loss", "optimizer",
/// "copies", "communication".
std::string_view op_kind_name(OpKind kind);

/// What passes look for that rewrite one place of a step.
enum class OpRole : uint8_t {
  kNone,
  kProduct,       ///< x, w, ... -> y; y = x w^T, the rows of w are the features of y
  kProductDgrad,  ///< dy, w -> dx of the same product
  kProductWgrad,  ///< x, dy -> dw of the same product
  kTableWgrad,    ///< of rows that were looked up
  kGradientNorm,  ///< of one range of gradients
  kRotary,        ///< turns packed qkv rows by their positions
  kAttention,     ///< of whole sequences, forward
  kPackKv,        ///< makes what context ranks send each other
  kSplitHeads,    ///< cuts rows into blocks of heads, or joins them
  kSwapBlocks,
};

inline constexpr size_t kNumOpRoles = 11;

/// A product [rows, depth] x [depth, columns].
struct GemmShape {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 0;
  DType dtype = DType::kF32;  ///< of the factors

  friend bool operator==(const GemmShape&, const GemmShape&) = default;
};

struct AttentionShape {
  int64_t sequences = 0;
  int64_t sequence = 0;  ///< keys that a query may see
  int64_t queries = 0;   ///< per sequence; `sequence`, but for a step over a part of the pairs
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  bool backward = false;
  DType dtype = DType::kF32;
};

enum class HostCopy : uint8_t { kToDevice, kToHost };

/// What a task may be cut along.
enum class SplitDimension : uint8_t {
  kUndeclared,  ///< refused by validate_op
  kNever,
  kRows,
  kFeatures,
};

/// How an op may be cut into tasks that have its meaning together, in any order. A piece is a run
/// of leading rows of one operand; the others have as many, or an equal share of them.
struct SplitTraits {
  SplitDimension dimension = SplitDimension::kUndeclared;
  /// A piece has the bits of the whole. Not of products and attention, whose libraries choose a
  /// kernel by the size: f32 blocks of rows of OpenBLAS, for example.
  bool keeps_bits = true;
  size_t counted = 0;  ///< the operand whose leading dimension is cut
  /// Whether each piece has all of that operand; null: of none.
  bool (*is_whole)(const OpSpec& spec, size_t operand) = nullptr;
  /// Pieces begin at multiples of this; 0: this spec cannot be cut. Null: 1.
  int64_t (*unit)(const OpSpec& spec) = nullptr;
  /// Gives a piece, whose shapes are cut already, the attributes and the last operands of
  /// [begin, end). Null: they are those of the whole.
  void (*narrow)(OpSpec& piece, int64_t begin, int64_t end) = nullptr;
};

inline constexpr SplitTraits kNeverSplit{.dimension = SplitDimension::kNever};
inline constexpr SplitTraits kSplitByRows{.dimension = SplitDimension::kRows};

/// By rows; operands [first, end), such as weights, go to every piece as they are.
template <size_t kFirst, size_t kEnd>
constexpr SplitTraits rows_but_operands() {
  return {.dimension = SplitDimension::kRows, .is_whole = [](const OpSpec&, size_t operand) {
            return operand >= kFirst && operand < kEnd;
          }};
}

/// Operands of a piece begin at multiples of as many elements: 16 of one byte are the 16 bytes that
/// kernels ask of pointers.
inline constexpr int64_t kAlignedElems = 16;

/// How the values that an op leaves follow from those that it reads.
enum class ValueRule : uint8_t {
  kComputed,  ///< from all operands that it reads, and from its attributes
  kMoved,     ///< x -> y: y has the values of x
  kByRow,     ///< each row of the last operand from that row of the others and nothing else, the
              ///< same bits wherever the row is
  kOfParts,   ///< those of the two ops that it stands for (linear_swiglu.h)
};

/// What ranks do together; meanings in ops/collectives.h.
enum class CommOp : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kRingShift,
  kSend,
  kRecv,
};

inline constexpr size_t kNumCommOps = 9;

/// x and y of one rank in a group of n.
enum class CommShape : uint8_t {
  kSame,     ///< as many elements in both
  kGather,   ///< y is n blocks like x
  kScatter,  ///< x is n blocks like y
  kBlocks,   ///< as many in both, n blocks
  kMessage,  ///< one of the two: the other end has the other
};

/// Which engines besides multiprocessors can do all of a communication: what adds needs those.
enum class CommCopies : uint8_t {
  kNone,
  kCopyEngine,       ///< as braid drives copy engines
  kCopyEngineOrNccl  ///< also as NCCL 2.28 drives them
};

struct Communication {
  CommOp op = CommOp::kAllReduce;
  CommShape shape = CommShape::kSame;
  bool sums = false;
  /// No rank's call ends before every rank's has begun.
  bool waits_for_all = false;
  CommCopies copies = CommCopies::kNone;

  bool is_message() const { return shape == CommShape::kMessage; }
};

}  // namespace braid
