#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/op_spec.h"
#include "ops/integer_values.h"
#include "ops/op_traits.h"

namespace braid {

class BackwardBuilder;  // ops/autodiff.h
struct Node;

/// The minimum cost of an op: arithmetic, and bytes that must cross device memory once. For
/// communication ops `comm_bytes` is the size of one rank's largest operand (what an all-gather
/// writes, what a reduce-scatter reads); the cost model derives the bytes over a link from the
/// algorithm and the group.
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
  kCopy,   ///< moves or converts bytes, negligible arithmetic
  kOrder,  ///< does no work; only its place in the order matters
};

/// The results that the backward recomputes instead of keeping them; each policy includes the
/// previous ones. See passes/memory/recompute.h.
enum class Recompute : uint8_t {
  kNone,
  kNorms,      ///< of norms and activation functions, and gathers and copies of them: negligible
               ///< arithmetic, and at least as large as their inputs
  kAttention,  ///< of attention: keeping its inputs takes no more memory
  kCompute,    ///< of every op in a layer that does not communicate
  kFull,       ///< of every op in a layer
};

/// Another op that recomputes results of an op from one of its results, bit for bit on every
/// backend. It reads less, or a value that is kept anyway. Has the attributes of the op.
struct ReplayRule {
  std::string_view op = {};  ///< empty: there is none
  /// Its operands, as indices of the op's operands. It reads the first, a result of the op.
  std::span<const size_t> operands = {};
};

/// A task with one of an op's replay rules.
struct Replay {
  OpSpec spec;
  std::vector<size_t> operands = {};  ///< by operand of `spec`: which one of the op it is
};

/// Everything braid knows about one op, except its kernels (backends/*/kernels, file of the same
/// name). `validate_op` checks the required fields; all other fields have a safe default.
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
  /// Bytes that its kernels read a second time, in addition to `cost`. Null: none.
  double (*bytes_read_again)(const OpSpec& spec) = nullptr;
  KernelRate kernel_rate = {};  ///< of family kMemoryBound; the default: that of copies
  /// Adds the dgrad and wgrad nodes of `node`; null: not differentiable.
  void (*backward)(BackwardBuilder& builder, const Node& node) = nullptr;
  /// The least recompute policy that includes this op; kNone: no policy does.
  Recompute recompute = Recompute::kCompute;
  /// Its kernels also write main grads in bf16, all of them, with one rounding. Those of other ops
  /// are fp32 (f64 for f64 weights), and another task adds them to a bf16 main grad.
  bool narrow_main_grads = false;
  ReplayRule replay = {};
  /// In the place of `replay`, where it depends on the spec. Null: it does not.
  std::optional<Replay> (*replay_of)(const OpSpec& spec) = nullptr;
  /// The product of a spec of family kGemm, and the sizes of a spec of family kAttention; required
  /// for these families. Rows and columns are those of the operand that the product writes. The
  /// spec must have passed `check`.
  GemmShape (*gemm_shape)(const OpSpec& spec) = nullptr;
  AttentionShape (*attention_shape)(const OpSpec& spec) = nullptr;
  /// Of family kMemoryBound: its flops are products of small matrices inside of one kernel, which
  /// tensor cores compute.
  bool has_inner_products = false;
  std::optional<HostCopy> host_copy = {};  ///< required for family kHostCopy
  SplitTraits split = {};                  ///< its dimension is required for compute and copies
  PieceTraits pieces = {};
  SourceTraits source = {};
  ValueRule values = ValueRule::kComputed;
  std::optional<Communication> communication = {};  ///< required for class kCommunication
  /// The op that differentiates this one: what this does to values, the dual does to gradients in
  /// the opposite direction. Empty: `backward` is not a single op.
  std::string_view dual = {};
  /// A boolean attribute that is true on one rank of a group, which adds for all of them. Passes
  /// that must decide equally on all ranks use that rank's price. Empty: there is none.
  std::string_view added_by_one = {};
  /// An integer attribute that says which part of a tensor over ranks the operands hold. It selects
  /// values; no cost, split or decision of a pass depends on it. Empty: there is none.
  std::string_view part_begin = {};
  /// What the i32 operands that the op reads must hold. Null: any numbers from 0 on.
  IntegerNeed (*integers)(const OpSpec& spec, size_t operand) = nullptr;
  TallyKind tally = TallyKind::kNone;  ///< of specs that have one
};

/// The op of that name. Throws InternalError if there is none, and on first use what `validate_ops`
/// throws.
const OpDefinition& find_op(std::string_view name);
/// Null if there is none: passes accept programs with ops that exist only in tests.
const OpDefinition* find_known_op(std::string_view name);
std::span<const OpDefinition* const> all_ops();

/// The op of that communication.
const OpDefinition& find_op(CommOp op);

/// Throws InternalError naming the op and the field that is missing or contradicts another one.
void validate_op(const OpDefinition& op);
/// Validates all of them, that names and CommOps are unique, and that ops exist to which others
/// refer.
void validate_ops(std::span<const OpDefinition* const> ops);

// Queries about a spec, also if its op is unknown. has_role, communicates_as and is_message cost
// one or two comparisons and may be called for every task. Functions that look up an op by name are
// meant for specs, of which there are few.

/// Null for an op that does not communicate or is unknown.
const Communication* communication_of(const OpSpec& spec);
/// kComputed for an unknown op.
ValueRule value_rule(const OpSpec& spec);
bool has_role(const OpSpec& spec, OpRole role);
/// Which product of a matrix it is, also of FP8 factors; nothing: none. Costs a few comparisons.
std::optional<ProductPart> product_part(const OpSpec& spec);
bool communicates_as(const OpSpec& spec, CommOp op);
/// Whether it is one end of a message, a send or a recv.
bool is_message(const OpSpec& spec);
/// Whether it is a matrix product or a part of attention: these occupy a whole device, so
/// communication is placed to run concurrently with them. False for an unknown op.
bool is_product_or_attention(const OpSpec& spec);

/// `find_op(spec.op).check(spec)`, `.cost(spec)` and `.bytes_read_again(spec)`.
void check_spec(const OpSpec& spec);
OpCost spec_cost(const OpSpec& spec);
double bytes_read_again(const OpSpec& spec);

/// The boolean attribute of a spec whose last operand is a tally: numbers to which the task adds
/// and that nothing else in the step reads. They change neither the other results nor the task's
/// time.
inline constexpr std::string_view kTallyAttribute = "watch";
bool has_tally(const OpSpec& spec);
/// What the spec counts. Requires a tally.
TallyKind tally_kind(const OpSpec& spec);
/// The spec without its tally, as a pass repeats the task: what it did is counted already.
OpSpec without_tally(OpSpec spec);

/// The task by the replay rule of the spec's op; nullopt: it has none.
std::optional<Replay> find_replay(const OpSpec& spec);
/// Its spec. Throws InternalError if there is none.
OpSpec replay_spec(const OpSpec& spec);

}  // namespace braid
