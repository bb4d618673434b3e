#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/op_spec.h"
#include "ops/op_traits.h"

namespace braid {

class BackwardBuilder;  // ops/autodiff.h
struct Node;

/// What an op costs at least: arithmetic, and bytes that must cross device memory once.
/// Communication ops give the bytes of one rank's largest operand in `comm_bytes` (what an
/// all-gather writes, what a reduce-scatter reads); what crosses a link follows from the algorithm
/// and the group (cost model).
struct OpCost {
  double flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;
  double comm_bytes = 0;
  double host_bytes = 0;  ///< over the link between the device and its host
};

enum class OpClass : uint8_t {
  kCompute,
  kCommunication,
  kCopy,   ///< moves or converts bytes, no arithmetic worth counting
  kOrder,  ///< does nothing, only its place in the order matters
};

/// Which results the backward makes again instead of keeping them; each does what those before it
/// do, too. See passes/memory/recompute.h.
enum class Recompute : uint8_t {
  kNone,
  kNorms,      ///< of norms and activation functions, and gathers and copies of them: no arithmetic
               ///< worth counting, as large as what they read or larger
  kAttention,  ///< of attention: no more than its inputs to keep
  kFull,       ///< of everything in a layer
};

/// Another op that makes results of an op again from one of its results, bit for bit on every
/// backend: it reads less, or something that is kept anyway. Has the attributes of the op.
struct ReplayRule {
  std::string_view op = {};  ///< empty: there is none
  /// Its operands, as positions among those of the op. It reads the first, a result of the op.
  std::span<const size_t> operands = {};
};

/// Everything braid knows about one op, apart from its kernels (backends/*/kernels, file of the
/// same name). `validate_op` says what must be there; all else has a default that is safe.
struct OpDefinition {
  std::string_view name;
  std::string_view summary;  ///< one sentence; operands in order, attributes
  OpClass op_class = OpClass::kCompute;
  std::optional<OpFamily> family = {};  ///< required
  std::optional<OpKind> kind = {};      ///< required
  OpRole role = OpRole::kNone;
  /// Throws InternalError naming op, operand and shapes unless operands and attributes fit
  /// together.
  void (*check)(const OpSpec& spec) = nullptr;
  OpCost (*cost)(const OpSpec& spec) = nullptr;
  /// Adds the dgrad and wgrad nodes of `node`; null: not differentiable.
  void (*backward)(BackwardBuilder& builder, const Node& node) = nullptr;
  /// The least recomputation that includes this op; kNone: no recomputation does.
  Recompute recompute = Recompute::kFull;
  ReplayRule replay = {};
  /// The product that a spec of family kGemm is, or has, and the sizes of one of family kAttention;
  /// required of these. The result's rows and columns are those of the operand that the product
  /// writes. The spec must have passed `check`.
  GemmShape (*gemm_shape)(const OpSpec& spec) = nullptr;
  AttentionShape (*attention_shape)(const OpSpec& spec) = nullptr;
  std::optional<HostCopy> host_copy = {};  ///< required of family kHostCopy
  SplitTraits split = {};                  ///< its dimension is required of compute and copies
  ValueRule values = ValueRule::kComputed;
  std::optional<Communication> communication = {};  ///< required of class kCommunication
  /// The op that differentiates this one: what this does to values, the dual does to gradients in
  /// the opposite direction. Empty: `backward` is no single op.
  std::string_view dual = {};
  /// A boolean attribute that is true on one rank of a group, which adds for all of them. Passes
  /// that must decide alike on all ranks price what that rank does. Empty: there is none.
  std::string_view added_by_one = {};
  /// Of an op that reads tokens (i32): those that a spec knows are [0, limit). Null: any.
  int64_t (*token_limit)(const OpSpec& spec) = nullptr;
};

/// The op of that name. Throws InternalError if there is none, and on first use what `validate_ops`
/// throws.
const OpDefinition& find_op(std::string_view name);
/// Null if there is none: passes take programs with ops that only their tests know.
const OpDefinition* find_known_op(std::string_view name);
std::span<const OpDefinition* const> all_ops();

/// The op that communicates so.
const OpDefinition& find_op(CommOp op);

/// Throws InternalError naming the op and the field that is missing or contradicts another one.
void validate_op(const OpDefinition& op);
/// All of them, that names and CommOps are unique, and that ops exist which others name.
void validate_ops(std::span<const OpDefinition* const> ops);

// What programs ask about a spec, also about one whose op is not known. has_role, communicates_as
// and is_message cost a comparison or two and may be asked of every task; what looks an op up by
// its name is for specs, of which there are few.

/// Null for an op that does not communicate or is not known.
const Communication* communication_of(const OpSpec& spec);
/// kComputed for an op that is not known.
ValueRule value_rule(const OpSpec& spec);
bool has_role(const OpSpec& spec, OpRole role);
bool communicates_as(const OpSpec& spec, CommOp op);
/// Whether it is one end of a message, a send or a recv.
bool is_message(const OpSpec& spec);
/// Whether it is a matrix product or a part of attention: what fills a device, so that
/// communication is placed beside it. False for an op that is not known.
bool is_product_or_attention(const OpSpec& spec);

/// `find_op(spec.op).check(spec)` and `.cost(spec)`.
void check_spec(const OpSpec& spec);
OpCost spec_cost(const OpSpec& spec);

/// What the replay rule of the spec's op asks for. Throws InternalError if it has none.
OpSpec replay_spec(const OpSpec& spec);

}  // namespace braid
