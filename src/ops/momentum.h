#pragma once

#include "ops/op.h"
#include "ops/optimizer.h"

namespace braid {

// Updates by one moment or none. Operands are those of adamw (ops/optimizer.h) without exp_avg_sq:
// grad f32 or bf16 [n], scale f32 [1], scalars f32 [3], weight f32 [n] (rw), exp_avg f32 [n] (rw),
// optionally param bf16 [n] (written: the weight rounded to nearest even). Of scalars they read the
// first, the learning rate, times RateAttribute. With g = grad * scale; if scale is 0 (a skipped
// step) weight and exp_avg keep their values, and param is still written. exp_avg may be bf16 as in
// adamw; scalars then has 4 elements.

/// lion:
///   weight -= lr * weight_decay * weight;  weight -= lr * sign(beta1 exp_avg + (1-beta1) g)
///   exp_avg = beta2 exp_avg + (1-beta2) g
/// where sign(0) = 0. Source: Chen et al., Symbolic discovery of optimization algorithms, 2023,
/// algorithm 2.
struct LionAttributes {
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.0;
  bool has_param = false;
  RateAttribute group = {};
  void fields(auto&& visit) {
    visit("beta1", beta1);
    visit("beta2", beta2);
    visit("weight_decay", weight_decay);
    visit("has_param", has_param);
    visit.optional(group);
  }
};

/// sgd:
///   exp_avg = momentum exp_avg + g;  d = nesterov ? g + momentum exp_avg : exp_avg
///   weight -= lr * weight_decay * weight;  weight -= lr * d
/// With momentum 0 there is no operand exp_avg, scalars has 3 elements, and d = g. As
/// torch.optim.SGD without dampening, but decay is decoupled as in adamw: it does not enter
/// exp_avg. Source: Loshchilov and Hutter, Decoupled weight decay regularization, 2019,
/// algorithm 1.
struct SgdAttributes {
  double momentum = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;
  bool has_param = false;
  RateAttribute group = {};
  void fields(auto&& visit) {
    visit("momentum", momentum);
    visit("nesterov", nesterov);
    visit("weight_decay", weight_decay);
    visit("has_param", has_param);
    visit.optional(group);
  }
};

extern const OpDefinition kLionOp;
extern const OpDefinition kSgdOp;

}  // namespace braid
