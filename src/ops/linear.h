#pragma once

#include <optional>

#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// linear: x [N,K], w [M,K], optionally bias [M] -> y [N,M]; y = x w^T + bias. Without `adds_bias`
/// y lacks the bias, which still gets its gradient: if y is summed over ranks, only one of them
/// adds the bias that all hold.
struct LinearAttributes {
  bool has_bias = false;
  bool adds_bias = true;
  void fields(auto&& visit) {
    visit("has_bias", has_bias);
    visit("adds_bias", adds_bias);
  }
};

/// linear_dgrad: dy [N,M], w [M,K] -> dx [N,K]; dx = dy w. With `accumulate`, dx is added to
/// (kReadWrite).
struct LinearDgradAttributes {
  bool accumulate = false;
  void fields(auto&& visit) { visit("accumulate", accumulate); }
};

/// Output features [first, end) of a linear; default: all.
struct FeatureSlice {
  int64_t first_feature = 0;
  int64_t end_feature = 0;
  void fields(auto&& visit) {
    visit("first_feature", first_feature);
    visit("end_feature", end_feature);
  }
  bool is_all() const { return end_feature == 0; }
  friend bool operator==(const FeatureSlice&, const FeatureSlice&) = default;
};

/// linear_wgrad: x [N,K], dy [N,M] -> dw f32 [M,K] (main grad), optionally db f32 [M]. dw (+)= dy^T
/// x, db (+)= column sums of dy; with `accumulate` they are added to (kReadWrite), otherwise
/// overwritten (kWrite). For bf16 x both may be bf16: sums are fp32, and each result, with what it
/// is added to, is rounded once. With `features`, dw [end - first, K] has only these rows of the
/// whole dw, each summed over all N; db is still whole: one of the pieces has it.
struct LinearWgradAttributes {
  bool has_bias = false;
  bool accumulate = true;
  FeatureSlice features = {};
  void fields(auto&& visit) {
    visit("has_bias", has_bias);
    visit("accumulate", accumulate);
    visit.optional(features);
  }
};

extern const OpDefinition kLinearOp;
extern const OpDefinition kLinearDgradOp;
extern const OpDefinition kLinearWgradOp;

struct LinearOperands {
  ValueId x;
  ValueId weight;
  std::optional<ValueId> bias = {};
  bool adds_bias = true;
};

ValueId linear(GraphBuilder& builder, const LinearOperands& operands, std::string_view site);
ValueId linear(GraphBuilder& builder, ValueId x, ValueId weight, std::optional<ValueId> bias,
               std::string_view site);

/// The same, written to an existing value.
void linear_into(GraphBuilder& builder, const LinearOperands& operands, ValueId y,
                 std::string_view site);

}  // namespace braid
