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
/// Communication ops give the bytes of one rank's operand in `comm_bytes`; what crosses a link
/// follows from the algorithm and the group (cost model).
struct OpCost {
  double flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;
  double comm_bytes = 0;
};

enum class OpClass : uint8_t {
  kCompute,
  kCommunication,
  kCopy,  ///< moves or converts bytes, no arithmetic worth counting
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
};

/// The op of that name. Throws InternalError if there is none.
const OpDefinition& find_op(std::string_view name);
std::span<const OpDefinition* const> all_ops();

/// `find_op(spec.op).check(spec)` and `.cost(spec)`.
void check_spec(const OpSpec& spec);
OpCost spec_cost(const OpSpec& spec);

}  // namespace braid
