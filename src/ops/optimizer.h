#pragma once

#include <array>
#include <cstdint>

#include "base/host_device.h"
#include "base/random_rounding.h"
#include "ops/op.h"

namespace braid {

class OperandChecker;  // ops/operand_checker.h

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

/// adamw: grad f32 or bf16 [n], scale f32 [1], scalars f32 [3], weight f32 [n] (rw), exp_avg f32
/// [n] (rw), exp_avg_sq f32 [n] (rw), optionally param bf16 [n] (written: the weight rounded to
/// nearest even). scalars: the first of `adamw_scalars`, written by the host each step. With g =
/// grad * scale:
///   exp_avg = beta1 exp_avg + (1-beta1) g;  exp_avg_sq = beta2 exp_avg_sq + (1-beta2) g^2
///   weight -= lr * weight_decay * weight;  weight -= lr * (exp_avg / c1) / (sqrt(exp_avg_sq / c2)
///   + epsilon)
/// where c1, c2 are scalars[1], scalars[2]. If scale is 0 (a skipped step) weight and state keep
/// their values; param is still written. Source: Loshchilov and Hutter, Decoupled weight decay
/// regularization, 2019, algorithm 2.
///
/// Both moments may be bf16 instead; scalars then has 4 elements. The update uses the new moments
/// in fp32, and they are stored rounded up or down at random (`bf16_rounded_randomly`): to nearest,
/// exp_avg_sq would not move where a step changes it by less than half a unit, 2^-9 of it.
/// The learning rate is `rate` times the first scalar, also in weight decay. For groups of
/// parameters; 1 is not written.
struct RateAttribute {
  double rate = 1.0;
  void fields(auto&& visit) { visit("rate", rate); }
  friend bool operator==(const RateAttribute&, const RateAttribute&) = default;
};

struct AdamwAttributes {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  bool has_param = false;
  RateAttribute group = {};
  void fields(auto&& visit) {
    visit("beta1", beta1);
    visit("beta2", beta2);
    visit("epsilon", epsilon);
    visit("weight_decay", weight_decay);
    visit("has_param", has_param);
    visit.optional(group);
  }
};

/// {learning rate, 1 - beta1^step, 1 - beta2^step, step modulo 2^24}; steps count from 1.
std::array<float, 4> adamw_scalars(double learning_rate, double beta1, double beta2, int64_t step);

/// Checks the operand `scalars`, f32 [3], or [4] for bf16 moments. Returns the type of moments.
DType check_scalars(OperandChecker& operands);

/// The type of moments in a checked spec of adamw or an op of ops/momentum.h: kF32 or kBF16.
DType moments_dtype(const OpSpec& update);

/// Random bits for both moments of an element: the low 16 for exp_avg, the others for exp_avg_sq.
/// They depend on what the update reads, as bits, and on nothing else: not on the element's place,
/// so every layout has the same. `moments`: exp_avg in the low half; `step`: the last scalar, by
/// which an element that stays as it is gets other bits in each step.
BRAID_HOST_DEVICE constexpr uint32_t moment_rounding_bits(uint32_t grad, uint32_t weight,
                                                          uint32_t moments, uint32_t step) {
  return murmur3({grad, weight, moments}, step);
}

/// balance_update: grad f32 or bf16 [n], scale f32 [1], weight f32 [n] (rw), optionally param bf16
/// [n] (written: the weight rounded to nearest even). weight -= rate * sign(grad), where sign(0) =
/// 0; not if scale is 0 (a skipped step). For biases of routers, whose grad is that of
/// count_choices (router.h): an expert with more tokens than the mean is chosen less often from
/// then on.
struct BalanceUpdateAttributes {
  double rate = 0.0;
  bool has_param = false;
  void fields(auto&& visit) {
    visit("rate", rate);
    visit("has_param", has_param);
  }
};

/// average_weights: weight f32 [n], scale f32 [1], average f32 [n] (rw).
///   average += (1 - decay) * (weight - average)
/// Not if scale is 0 (a skipped step). Source: Polyak and Juditsky, Acceleration of stochastic
/// approximation by averaging, 1992; exponential, as torch.optim.swa_utils.get_ema_avg_fn.
struct AverageWeightsAttributes {
  double decay = 0.0;
  void fields(auto&& visit) { visit("decay", decay); }
};

/// matrix_squares: squared_norm of something that is no gradient, such as Muon's matrices: passes
/// take a squared_norm for a part of the gradient norm.
extern const OpDefinition kMatrixSquaresOp;
extern const OpDefinition kSquaredNormOp;
extern const OpDefinition kSumOp;
extern const OpDefinition kClipScaleOp;
extern const OpDefinition kAdamwOp;
extern const OpDefinition kBalanceUpdateOp;
extern const OpDefinition kAverageWeightsOp;

}  // namespace braid
