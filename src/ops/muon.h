#pragma once

#include "ops/op.h"
#include "ops/optimizer.h"

namespace braid {

// The parts of Muon's update of matrices, besides products (parallel/muon_tasks.h has the whole).
// T is f32 or bf16, the dtype of Newton-Schulz. Source: Jordan et al., Muon: an optimizer for
// hidden layers, 2024.

/// muon_mean: grad f32 or bf16 [n], scale f32 [1], scalars f32 [3], exp_avg f32 [n] (rw) -> update
/// T [n]. With g = grad * scale:
///   exp_avg = momentum exp_avg + (1 - momentum) g
///   update = nesterov ? (1 - momentum) g + momentum exp_avg : exp_avg
/// If scale is 0 (a skipped step) exp_avg keeps its values, and update is 0. exp_avg may be bf16,
/// and scalars then has 4 elements, as in adamw (ops/optimizer.h).
struct MuonMeanAttributes {
  double momentum = 0.95;
  bool nesterov = true;
  void fields(auto&& visit) {
    visit("momentum", momentum);
    visit("nesterov", nesterov);
  }
};

/// take_matrix: flat T [n] -> x T [rows, columns]: row i is elements [i pitch, i pitch + columns)
/// of flat. With `transposed`, x [columns, rows] is its transpose.
/// put_matrix: x -> flat (rw), the inverse, times `factor`; elements between rows keep their
/// values.
struct MatrixPlaceAttributes {
  int64_t pitch = 1;
  bool transposed = false;
  void fields(auto&& visit) {
    visit("pitch", pitch);
    visit("transposed", transposed);
  }
};
struct PutMatrixAttributes {
  MatrixPlaceAttributes place = {};
  double factor = 1.0;
  void fields(auto&& visit) {
    place.fields(visit);
    visit("factor", factor);
  }
};

/// normalize: squares f64 [1], x T [n] (rw); x /= sqrt(squares) + 1e-7.

/// weighted_sum: x T [n], y T [n] (rw); y = x_weight x + y_weight y, in f32, rounded once.
struct WeightedSumAttributes {
  double x_weight = 1.0;
  double y_weight = 1.0;
  void fields(auto&& visit) {
    visit("x_weight", x_weight);
    visit("y_weight", y_weight);
  }
};

/// muon_update: update T [n], scale f32 [1], scalars f32 [3], weight f32 [n] (rw),
/// optionally param bf16 [n] (written: the weight rounded to nearest even).
///   weight -= lr * weight_decay * weight;  weight -= lr * update
/// where lr is as in adamw. Not if scale is 0; param is still written.
struct MuonUpdateAttributes {
  double weight_decay = 0.0;
  bool has_param = false;
  RateAttribute group = {};
  void fields(auto&& visit) {
    visit("weight_decay", weight_decay);
    visit("has_param", has_param);
    visit.optional(group);
  }
};

extern const OpDefinition kMuonMeanOp;
extern const OpDefinition kTakeMatrixOp;
extern const OpDefinition kPutMatrixOp;
extern const OpDefinition kNormalizeOp;
extern const OpDefinition kWeightedSumOp;
extern const OpDefinition kMuonUpdateOp;

/// Rows and columns, in `flat`, of the matrix of a checked spec of take_matrix or put_matrix.
struct MatrixSize {
  int64_t rows = 0;
  int64_t columns = 0;
};
MatrixSize matrix_size(const OpSpec& spec);

}  // namespace braid
