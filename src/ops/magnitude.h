#pragma once

#include <optional>
#include <span>

#include "ops/adapter.h"
#include "ops/graph.h"
#include "ops/op.h"

namespace braid {

/// DoRA: a matrix with an adapter has rows of trained lengths. With V = W + scale B A, row i of the
/// matrix is V_i (|W_i| + change_i) / |V_i|, so with change 0 and B 0 it is W. |V_i| counts as a
/// constant in gradients. Source: Liu et al., DoRA, 2024, section 4.3; peft's magnitude vector is
/// |W| + change. We store the change: rounded to bf16, it is more exact than the sum.
///
/// adapted_squares: w [M,K], a [R,K], one to three b [S,R/n] -> squares f32 [2,M] (f64 for f64 w).
/// In rows that have an adapter, squares[0] = |W_i|^2 and squares[1] = |V_i|^2, with columns in
/// place of the columns of add_adapters as rows; both are 0 in other rows. The i-th of n b belongs
/// to the i-th R/n rows of a. Over ranks that split K, squares of all are the sum of theirs.
struct AdaptedSquaresAttributes {
  AddAdaptersAttributes adapters = {};
  void fields(auto&& visit) { adapters.fields(visit); }
};

/// apply_magnitudes: v [N,M], change [M], squares [2,M], optionally bias [M] -> y [N,M]; y = gain *
/// v + bias, rounded once, with gain = (sqrt(squares[0]) + change) / sqrt(squares[1]), or 1 where
/// squares[1] is 0. Without `adds_bias` y lacks the bias: if y is summed over ranks, only one of
/// them adds the bias that all hold. The bias gets no gradient, so it must be frozen.
struct ApplyMagnitudesAttributes {
  bool has_bias = false;
  bool adds_bias = true;
  void fields(auto&& visit) {
    visit("has_bias", has_bias);
    visit("adds_bias", adds_bias);
  }
};

/// apply_magnitudes_backward: v [N,M], change [M], squares [2,M], dy [N,M] -> dv [N,M], dchange f32
/// [M] (main grad); dv = gain * dy, dchange (+)= column sums of dy * v / sqrt(squares[1]), or 0
/// where squares[1] is 0; with `accumulate` they are added to (kReadWrite).
struct ApplyMagnitudesBackwardAttributes {
  bool accumulate = true;
  void fields(auto&& visit) { visit("accumulate", accumulate); }
};

extern const OpDefinition kAdaptedSquaresOp;
extern const OpDefinition kApplyMagnitudesOp;
extern const OpDefinition kApplyMagnitudesBackwardOp;

/// A weight, and what makes rows of it longer or shorter.
struct AdaptedWeight {
  ValueId weight;                          ///< [M,K]
  ValueId a;                               ///< [R,K]
  std::span<const Adapter> adapters = {};  ///< `z` is b [S,R/n], and the columns are rows
  double scale = 1.0;
};

/// The squares, of kind kOfWeights.
ValueId adapted_squares(GraphBuilder& builder, const AdaptedWeight& weight, std::string_view site);

struct Magnitudes {
  ValueId change;
  ValueId squares;
  std::optional<ValueId> bias = {};
  bool adds_bias = true;
};

ValueId apply_magnitudes(GraphBuilder& builder, ValueId v, const Magnitudes& magnitudes,
                         std::string_view site);

}  // namespace braid
