#pragma once

#include <array>
#include <limits>

#include "ops/graph.h"
#include "ops/op.h"
#include "ops/operand_checker.h"

namespace braid {

/// mamba2: zxbcdt [T,2I+2GS+H], conv_weight [I+2GS,K], conv_bias [I+2GS], dt_bias [H], a_log [H],
/// skip [H], norm_weight [I] -> y [T,I], rstd f32 [T,R], v [T,I]. The part of a Mamba-2 layer
/// between its two projections, I = H P. A row of zxbcdt holds z [I], x [I], B [GS], C [GS], dt
/// [H]; T is a multiple of `sequence`. In each sequence, whose state begins at 0:
///   x, B, C  a causal depthwise convolution of K taps (tap K-1 is the row's own), then SiLU
///   dt       clamp(softplus(dt + dt_bias), dt_min, dt_max); softplus(u) = u above 20
///   state    S_t = exp(-dt exp(a_log)) S_{t-1} + dt x_t B_t^T, [P,S] per head
///   y_t      S_t C_t + skip x_t; head h has B and C of group h G / H
///   v        y SiLU(z) rstd norm_weight, rstd = 1 / sqrt(mean((y SiLU(z))^2) + epsilon) over each
///            of R runs of I/R channels, both from y as rounded to its type
/// Arithmetic and states are f32 (f64 for f64 data). `chunk` rows are computed together; its size
/// changes rounding only. Source: Dao and Gu, Transformers are SSMs, 2024, section 6; the layer as
/// in the published code of Mamba-2 (norm after the gate).
/// The weights may be those of more heads than a row has: of `count` parts with so many heads and
/// groups each, of which the op reads part `index` (for conv_weight and conv_bias that part of x's
/// rows, of B's and of C's).
struct Mamba2WeightPart {
  int64_t count = 1;
  int64_t index = 0;
  void fields(auto&& visit) {
    visit("weight_parts", count);
    visit("weight_part", index);
  }
  friend bool operator==(const Mamba2WeightPart&, const Mamba2WeightPart&) = default;
};

struct Mamba2Attributes {
  int64_t sequence = 0;
  int64_t heads = 0;        ///< H
  int64_t head_size = 0;    ///< P
  int64_t groups = 0;       ///< G, divides H
  int64_t state = 0;        ///< S
  int64_t chunk = 0;        ///< at least 1; need not divide `sequence`
  int64_t norm_groups = 1;  ///< R, divides I
  double dt_min = 0.0;
  double dt_max = std::numeric_limits<double>::infinity();
  double epsilon = 1e-5;
  Mamba2WeightPart weights = {};

  void fields(auto&& visit) {
    visit("sequence", sequence);
    visit("heads", heads);
    visit("head_size", head_size);
    visit("groups", groups);
    visit("state", state);
    visit("chunk", chunk);
    visit("norm_groups", norm_groups);
    visit("dt_min", dt_min);
    visit("dt_max", dt_max);
    visit("epsilon", epsilon);
    visit.optional(weights);
  }

  int64_t inner() const { return heads * head_size; }                     ///< I
  int64_t convolved() const { return inner() + 2 * groups * state; }      ///< of x, B, C
  int64_t row_elems() const { return inner() + convolved() + heads; }     ///< of zxbcdt
  int64_t dt_begin() const { return inner() + convolved(); }              ///< in a row of zxbcdt
  int64_t group_of(int64_t head) const { return head * groups / heads; }  ///< of B and C

  /// A run of channels of the convolution: x, B or C.
  struct ConvRun {
    int64_t begin = 0;  ///< in a row
    int64_t size = 0;
    int64_t weight_begin = 0;  ///< in the rows of conv_weight
  };
  std::array<ConvRun, 3> conv_runs() const {
    const int64_t factor = groups * state;
    const auto run = [&](int64_t begin, int64_t size) {
      return ConvRun{begin, size, weights.count * begin + weights.index * size};
    };
    return {run(0, inner()), run(inner(), factor), run(inner() + factor, factor)};
  }
};

/// mamba2_backward: zxbcdt, conv_weight, conv_bias, dt_bias, a_log, skip, norm_weight, y, rstd, dv
/// [T,I] -> d_zxbcdt, d_conv_weight, d_conv_bias, d_dt_bias, d_a_log, d_skip, d_norm_weight. The
/// gradients of weights are f32 (f64 for f64 data); with `accumulate` they are added to
/// (kReadWrite), otherwise overwritten, those of other parts with 0. Convolution and states are
/// computed again. Sums over rows and heads run in an order that depends only on attributes and
/// shapes.
struct Mamba2BackwardAttributes {
  Mamba2Attributes core;
  bool accumulate = true;
  void fields(auto&& visit) {
    core.fields(visit);
    visit("accumulate", accumulate);
  }
};

extern const OpDefinition kMamba2Op;
extern const OpDefinition kMamba2BackwardOp;

/// Checks the first operands of a spec: zxbcdt, which is returned, and the weights.
const OperandSpec& check_mamba2_inputs(OperandChecker& operands, const Mamba2Attributes& a);

/// Flops of mamba2 and of its backward, of specs that begin with these operands.
double mamba2_flops(const OpSpec& spec, const Mamba2Attributes& a);
double mamba2_backward_flops(const OpSpec& spec, const Mamba2Attributes& a);
/// Of the states alone, with the convolution in front of them.
double mamba2_state_flops(const OpSpec& spec, const Mamba2Attributes& a);

struct Mamba2Operands {
  ValueId zxbcdt;
  ValueId conv_weight;
  ValueId conv_bias;
  ValueId dt_bias;
  ValueId a_log;
  ValueId skip;
  ValueId norm_weight;
};

/// Returns v.
ValueId mamba2(GraphBuilder& builder, const Mamba2Operands& operands,
               const Mamba2Attributes& attributes, std::string_view site);

}  // namespace braid
