#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "base/errors.h"
#include "ops/op.h"

namespace braid {
namespace {

/// Checks one op, and names it in errors.
class OpValidator {
 public:
  explicit OpValidator(const OpDefinition& op) : op_(op) {}

  void run() const {
    need(!op_.name.empty() && !op_.summary.empty(), "name and summary", "are missing");
    need(op_.check != nullptr, "check", "is missing");
    need(op_.cost != nullptr, "cost", "is missing");
    need(op_.family.has_value(), "family", "is missing: no cost model could price it");
    need(op_.kind.has_value(), "kind", "is missing");
    check_family();
    check_communication();
    check_split();
    need(op_.source.num_operands == 0 || op_.source.result < op_.source.num_operands, "source",
         "rounds no operand of the op");
    need(!op_.dual.empty() ? op_.backward != nullptr : true, "backward",
         "is missing, though it has a dual");
  }

 private:
  void need(bool condition, std::string_view field, std::string_view fault) const {
    check(condition, "op {}: {} {}", op_.name, field, fault);
  }

  /// The field must be present exactly if it is required.
  void need_just_if(bool is_wanted, bool is_there, std::string_view field) const {
    need(is_there || !is_wanted, field, "is missing");
    need(is_wanted || !is_there, field, "contradicts its family or class");
  }

  void check_family() const {
    need_just_if(op_.family == OpFamily::kGemm, op_.gemm_shape != nullptr, "gemm_shape");
    need_just_if(op_.family == OpFamily::kAttention, op_.attention_shape != nullptr,
                 "attention_shape");
    need(op_.kernel_rate.part > 0 && op_.kernel_rate.part <= 1 && op_.kernel_rate.least_ns >= 0,
         "kernel_rate", "must be in (0, 1], and its least time at least 0");
    need(op_.family == OpFamily::kMemoryBound ||
             (op_.kernel_rate.part == 1 && op_.kernel_rate.least_ns == 0),
         "kernel_rate", "contradicts its family");
    need_just_if(op_.family == OpFamily::kHostCopy, op_.host_copy.has_value(), "host_copy");
    need((op_.family == OpFamily::kNothing) == (op_.op_class == OpClass::kOrder), "family",
         "contradicts op_class");
    need((op_.family == OpFamily::kCommunication) == (op_.op_class == OpClass::kCommunication),
         "family", "contradicts op_class");
  }

  void check_communication() const {
    const bool communicates = op_.op_class == OpClass::kCommunication;
    need_just_if(communicates, op_.communication.has_value(), "communication");
    need((op_.kind == OpKind::kCommunication) == communicates, "kind", "contradicts op_class");
    need(!communicates || op_.recompute != Recompute::kCompute, "recompute",
         "must not be kCompute, which repeats no communication");
    if (communicates) {
      need(!op_.communication->sums || op_.communication->copies == CommCopies::kNone,
           "communication", "sums, which copies cannot");
      need(!op_.communication->is_message() || !op_.communication->waits_for_all, "communication",
           "is a message, which waits for one rank only");
    }
  }

  void check_split() const {
    const bool may_be_cut = op_.op_class == OpClass::kCompute || op_.op_class == OpClass::kCopy;
    const bool is_declared = op_.split.dimension != SplitDimension::kUndeclared;
    need(is_declared || !may_be_cut, "split", "is missing: kNeverSplit if it cannot be cut");
    need(op_.values != ValueRule::kByRow || (op_.split.dimension == SplitDimension::kRows &&
                                             op_.split.keeps_bits && op_.split.is_whole == nullptr),
         "split", "must be kSplitByRows, since its values are by row");
  }

  const OpDefinition& op_;
};

}  // namespace

void validate_op(const OpDefinition& op) {
  OpValidator(op).run();
}

void validate_ops(std::span<const OpDefinition* const> ops) {
  std::set<std::string_view> names;
  std::set<CommOp> comm_ops;
  for (const OpDefinition* const op : ops) {
    validate_op(*op);
    check(names.insert(op->name).second, "op {}: name is that of another op", op->name);
    check(!op->communication || comm_ops.insert(op->communication->op).second,
          "op {}: communication is that of another op", op->name);
  }
  check(comm_ops.size() == kNumCommOps, "{} of {} ways to communicate have an op", comm_ops.size(),
        kNumCommOps);
  const auto find = [&](std::string_view name) {
    return *std::ranges::find(ops, name, [](const OpDefinition* op) { return op->name; });
  };
  for (const OpDefinition* const op : ops) {
    check(op->replay.op.empty() || names.contains(op->replay.op), "op {}: replay names no op",
          op->name);
    check(op->dual.empty() || (names.contains(op->dual) && find(op->dual)->dual == op->name),
          "op {}: dual {} has another dual", op->name, op->dual);
  }
}

}  // namespace braid
