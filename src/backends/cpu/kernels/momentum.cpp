#include "ops/momentum.h"

#include <bit>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/moments.h"
#include "backends/cpu/kernels/support.h"
#include "ops/attributes.h"
#include "ops/optimizer.h"

namespace braid {
namespace {

/// What the ops of ops/momentum.h do to one element in fp32.
struct Moved {
  float moment;     // the new exp_avg
  float direction;  // of the weight, times the learning rate
};

struct Lion {
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;

  Moved operator()(float g, float m) const {
    const float mean = beta1 * m + one_minus_beta1 * g;
    const float sign = (mean > 0 ? 1.0f : 0.0f) - (mean < 0 ? 1.0f : 0.0f);
    return {.moment = beta2 * m + one_minus_beta2 * g, .direction = sign};
  }
};

struct Sgd {
  float momentum;
  bool nesterov;

  Moved operator()(float g, float m) const {
    const float sum = momentum * m + g;
    return {.moment = sum, .direction = nesterov ? g + momentum * sum : sum};
  }
};

/// The factors of one step.
struct StepFactors {
  float scale;
  float rate;
  float decay;    // rate * weight_decay
  uint32_t seed;  // of random rounding: the bits of the last scalar, if moments are bf16
};

struct UpdateFacts {
  double weight_decay = 0;
  double rate = 1;  // RateAttribute
  bool has_param = false;
  bool narrow = false;  // moments are bf16
  size_t param_operand = 5;
};

StepFactors step_factors(const KernelArgs& args, const UpdateFacts& facts) {
  const auto* const scalars = args.data<const float>(2);
  const double rate = facts.rate * static_cast<double>(scalars[0]);
  return {.scale = *args.data<const float>(1),
          .rate = static_cast<float>(rate),
          .decay = static_cast<float>(rate * facts.weight_decay),
          .seed = facts.narrow ? std::bit_cast<uint32_t>(scalars[3]) : 0};
}

/// Random bits for the moment of an element; unused where it is fp32.
template <class Moment>
uint32_t bits_for(float grad, float weight, const Moment& moment, uint32_t seed) {
  if constexpr (std::is_same_v<Moment, BFloat16>) {
    return moment_rounding_bits(std::bit_cast<uint32_t>(grad), std::bit_cast<uint32_t>(weight),
                                uint32_t{moment.bits}, seed);
  } else {
    return 0;
  }
}

template <class Rule, class Grad, class Moment>
void move_range(const Rule& rule, const StepFactors& step, const Grad* grads, float* weight,
                Moment* exp_avg, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float grad = grads[i];
    const Moved moved = rule(grad * step.scale, exp_avg[i]);
    const float decayed = weight[i] - step.decay * weight[i];
    const uint32_t random = bits_for(grad, weight[i], exp_avg[i], step.seed);
    store_moment(exp_avg[i], moved.moment, random);
    weight[i] = decayed - step.rate * moved.direction;
  }
}

/// Without a moment.
template <class Grad>
void descend_range(const StepFactors& step, const Grad* grad, float* weight, int64_t begin,
                   int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float decayed = weight[i] - step.decay * weight[i];
    weight[i] = decayed - step.rate * (grad[i] * step.scale);
  }
}

/// Calls update(step, args, begin, end) for blocks of weights, and rounds these.
template <class Update>
CpuKernel blocks_kernel(const OpSpec& spec, const UpdateFacts& facts, const Update& update) {
  const int64_t count = spec.operands[0].shape.num_elems();
  return {.run = [=](const KernelArgs& args) {
    const StepFactors step = step_factors(args, facts);
    run_pieces(args.workers, count, kMinElemsPerPiece, [&](int, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += kUpdateBlock) {
        const int64_t stop = std::min(end, i + kUpdateBlock);
        if (step.scale != 0.0f) {
          update(step, args, i, stop);
        }
        if (facts.has_param) {
          round_to_param(args.data<const float>(3), args.data<BFloat16>(facts.param_operand), i,
                         stop);
        }
      }
    });
  }};
}

template <class Grad, class Moment, class Rule>
CpuKernel moving_kernel(const OpSpec& spec, const UpdateFacts& facts, const Rule& rule) {
  return blocks_kernel(
      spec, facts,
      [=](const StepFactors& step, const KernelArgs& args, int64_t begin, int64_t end) {
        move_range(rule, step, args.data<const Grad>(0), args.data<float>(3), args.data<Moment>(4),
                   begin, end);
      });
}

template <class Rule>
CpuKernel moving_kernel_of(const OpSpec& spec, const UpdateFacts& facts, const Rule& rule) {
  return dispatch_gradient(spec, [&]<class Grad>() {
    return facts.narrow ? moving_kernel<Grad, BFloat16>(spec, facts, rule)
                        : moving_kernel<Grad, float>(spec, facts, rule);
  });
}

}  // namespace

CpuKernel make_lion(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<LionAttributes>(spec);
  return moving_kernel_of(spec,
                          {.weight_decay = attributes.weight_decay,
                           .rate = attributes.group.rate,
                           .has_param = attributes.has_param,
                           .narrow = moments_dtype(spec) == DType::kBF16},
                          Lion{.beta1 = static_cast<float>(attributes.beta1),
                               .one_minus_beta1 = static_cast<float>(1.0 - attributes.beta1),
                               .beta2 = static_cast<float>(attributes.beta2),
                               .one_minus_beta2 = static_cast<float>(1.0 - attributes.beta2)});
}

CpuKernel make_sgd(const OpSpec& spec, int /*num_workers*/) {
  const auto attributes = attributes_of<SgdAttributes>(spec);
  UpdateFacts facts{.weight_decay = attributes.weight_decay,
                    .rate = attributes.group.rate,
                    .has_param = attributes.has_param,
                    .narrow = moments_dtype(spec) == DType::kBF16};
  if (attributes.momentum > 0) {
    return moving_kernel_of(
        spec, facts,
        Sgd{.momentum = static_cast<float>(attributes.momentum), .nesterov = attributes.nesterov});
  }
  facts.param_operand = 4;
  return dispatch_gradient(spec, [&]<class Grad>() {
    return blocks_kernel(
        spec, facts,
        [](const StepFactors& step, const KernelArgs& args, int64_t begin, int64_t end) {
          descend_range(step, args.data<const Grad>(0), args.data<float>(3), begin, end);
        });
  });
}

}  // namespace braid
