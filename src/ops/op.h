#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ir/op_spec.h"

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
/// same name).
struct OpDefinition {
  std::string_view name;
  std::string_view summary;  ///< one sentence; operands in order, attributes
  OpClass op_class = OpClass::kCompute;
  /// Throws InternalError naming op, operand and shapes unless operands and attributes fit
  /// together.
  void (*check)(const OpSpec& spec) = nullptr;
  OpCost (*cost)(const OpSpec& spec) = nullptr;
  /// Adds the dgrad and wgrad nodes of `node`; null: not differentiable.
  void (*backward)(BackwardBuilder& builder, const Node& node) = nullptr;
  /// The least recomputation that includes this op; kNone: no recomputation does.
  Recompute recompute = Recompute::kFull;
  ReplayRule replay = {};
};

/// The op of that name. Throws InternalError if there is none.
const OpDefinition& find_op(std::string_view name);
std::span<const OpDefinition* const> all_ops();

/// `find_op(spec.op).check(spec)` and `.cost(spec)`.
void check_spec(const OpSpec& spec);
OpCost spec_cost(const OpSpec& spec);

/// What the replay rule of the spec's op asks for. Throws InternalError if it has none.
OpSpec replay_spec(const OpSpec& spec);

}  // namespace braid
