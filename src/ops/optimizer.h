#pragma once

#include "ops/op.h"

namespace braid {

/// squared_norm: x [n] (floating point) -> partial f64 [1]; sum of squares, summed in blocks whose
/// order depends only on n. sum: x f64 [n] -> total f64 [1], in ascending order. clip_scale:
/// partials f64 [k] -> grad_norm f32 [1], scale f32 [1]. grad_norm = sqrt(sum of partials); scale =
/// min(1, max_norm / (grad_norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 if max_norm is 0. If
/// grad_norm is not finite, scale is 0, and the trainer counts the step as skipped because of
/// grad_norm.
struct ClipScaleAttributes {
  double max_norm = 0.0;
  void fields(auto&& visit) { visit("max_norm", max_norm); }
};

/// adamw: grad f32 [n], scale f32 [1], scalars f32 [3], weight f32 [n] (rw), exp_avg f32 [n] (rw),
/// exp_avg_sq f32 [n] (rw), optionally param bf16 [n] (written: the weight rounded to nearest
/// even). scalars = {learning rate, 1 - beta1^t, 1 - beta2^t}, written by the host each step. With
/// g = grad * scale:
///   exp_avg = beta1 exp_avg + (1-beta1) g;  exp_avg_sq = beta2 exp_avg_sq + (1-beta2) g^2
///   weight -= lr * weight_decay * weight;  weight -= lr * (exp_avg / c1) / (sqrt(exp_avg_sq / c2)
///   + epsilon)
/// where c1, c2 are scalars[1], scalars[2]. If scale is 0 (a skipped step) weight and state keep
/// their values; param is still written. Source: Loshchilov and Hutter, Decoupled weight decay
/// regularization, 2019, algorithm 2.
struct AdamwAttributes {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  bool has_param = false;
  void fields(auto&& visit) {
    visit("beta1", beta1);
    visit("beta2", beta2);
    visit("epsilon", epsilon);
    visit("weight_decay", weight_decay);
    visit("has_param", has_param);
  }
};

extern const OpDefinition kSquaredNormOp;
extern const OpDefinition kSumOp;
extern const OpDefinition kClipScaleOp;
extern const OpDefinition kAdamwOp;

}  // namespace braid
