#include "ops/router.h"

#include <cmath>
#include <numeric>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/router_rows.h"
#include "backends/cpu/kernels/support.h"
#include "backends/cpu/kernels/vector_math.h"
#include "ops/attributes.h"

namespace braid {
namespace {

/// Whether expert (or group) a is chosen before b. NaN is the largest number; a total order.
template <class W>
bool comes_before(const W* keys, int64_t a, int64_t b) {
  const bool a_is_nan = std::isnan(keys[a]);
  if (a_is_nan != std::isnan(keys[b])) {
    return a_is_nan;
  }
  return a_is_nan || keys[a] == keys[b] ? a < b : keys[a] > keys[b];
}

/// The first `wanted` of the allowed indices below `count`, in the order of choice.
template <class W, class Index, class Allowed>
void choose_largest(const W* keys, int64_t count, int64_t wanted, const Allowed& allowed,
                    Index* chosen) {
  for (int64_t j = 0; j < wanted; ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < count; ++e) {
      const bool is_left =
          allowed(e) && (j == 0 || comes_before(keys, static_cast<int64_t>(chosen[j - 1]), e));
      if (is_left && (best < 0 || comes_before(keys, e, best))) {
        best = e;
      }
    }
    chosen[j] = static_cast<Index>(best);
  }
}

/// What a worker needs for one token; parts of its scratch.
template <class W>
struct TokenScratch {
  W* keys = nullptr;           // [E]: by which experts are compared
  W* group_scores = nullptr;   // [groups]
  int32_t* groups = nullptr;   // [groups]: the kept ones first
  int32_t* is_kept = nullptr;  // [groups]

  TokenScratch(std::byte* memory, int64_t experts, int64_t num_groups)
      : keys(reinterpret_cast<W*>(memory)),
        group_scores(keys + experts),
        groups(reinterpret_cast<int32_t*>(group_scores + num_groups)),
        is_kept(groups + num_groups) {}

  static size_t bytes(int64_t experts, int64_t num_groups) {
    return align_scratch(static_cast<size_t>(experts + num_groups) * sizeof(W) +
                         static_cast<size_t>(2 * num_groups) * sizeof(int32_t));
  }
};

template <class W>
class Router {
 public:
  explicit Router(const OpSpec& spec)
      : rule_(attributes_of<RouteAttributes>(spec).rule),
        forced_(attributes_of<RouteAttributes>(spec).choice),
        experts_(spec.operands[0].shape[1]) {}

  /// `given`: the experts of the token, or null.
  void run_token(int64_t token, const W* logits, const W* bias, const int32_t* given,
                 const TokenScratch<W>& scratch, W* weights, int32_t* chosen) const {
    if (given != nullptr) {
      std::copy_n(given, rule_.per_token, chosen);
    } else {
      choose(token, logits, bias, scratch, chosen);
    }
    if (rule_.sigmoid) {
      sigmoid_weights(logits, chosen, weights);
    } else {
      softmax_weights(logits, chosen, weights);
    }
  }

 private:
  void choose(int64_t token, const W* logits, const W* bias, const TokenScratch<W>& scratch,
              int32_t* chosen) const {
    if (forced_.forced) {
      for (int64_t j = 0; j < rule_.per_token; ++j) {
        const int64_t pair = token * rule_.per_token + j;
        chosen[j] = static_cast<int32_t>((pair + forced_.first) % experts_);
      }
      return;
    }
    fill_keys(logits, bias, scratch.keys);
    if (rule_.groups == 1) {
      choose_largest(
          scratch.keys, experts_, rule_.per_token, [](int64_t) { return true; }, chosen);
    } else {
      choose_in_groups(bias != nullptr, scratch, chosen);
    }
  }

  void fill_keys(const W* logits, const W* bias, W* keys) const {
    if (bias == nullptr) {
      std::copy_n(logits, experts_, keys);
      return;
    }
    const RowExp<W> row(logits, experts_);
    for (int64_t e = 0; e < experts_; ++e) {
      const W score = rule_.sigmoid ? vector_math::sigmoid(logits[e]) : row.softmax(logits[e]);
      keys[e] = score + bias[e];
    }
  }

  void choose_in_groups(bool has_bias, const TokenScratch<W>& scratch, int32_t* chosen) const {
    const int64_t size = experts_ / rule_.groups;
    for (int64_t g = 0; g < rule_.groups; ++g) {
      scratch.group_scores[g] = group_score(scratch.keys + g * size, size, has_bias);
      scratch.is_kept[g] = 0;
    }
    choose_largest(
        scratch.group_scores, rule_.groups, rule_.kept_groups, [](int64_t) { return true; },
        scratch.groups);
    for (int64_t i = 0; i < rule_.kept_groups; ++i) {
      scratch.is_kept[scratch.groups[i]] = 1;
    }
    choose_largest(
        scratch.keys, experts_, rule_.per_token,
        [&](int64_t e) { return scratch.is_kept[e / size] != 0; }, chosen);
  }

  /// Without a bias, keys are logits.
  W group_score(const W* keys, int64_t size, bool has_bias) const {
    int32_t first[2] = {0, 0};
    choose_largest(
        keys, size, std::min<int64_t>(size, 2), [](int64_t) { return true; }, first);
    if (!rule_.sigmoid) {
      return keys[first[0]];
    }
    const auto score = [&](int32_t e) {
      return has_bias ? keys[e] : vector_math::sigmoid(keys[e]);
    };
    return size == 1 ? score(first[0]) : score(first[0]) + score(first[1]);
  }

  void sigmoid_weights(const W* logits, const int32_t* chosen, W* weights) const {
    W sum = W(kTinySum);
    for (int64_t j = 0; j < rule_.per_token; ++j) {
      weights[j] = vector_math::sigmoid(logits[chosen[j]]);
      sum += weights[j];
    }
    for (int64_t j = 0; j < rule_.per_token; ++j) {
      weights[j] = W(rule_.scale) * (rule_.normalize ? weights[j] / sum : weights[j]);
    }
  }

  /// The softmax over the chosen logits is that over all, divided by its sum, but cannot underflow.
  void softmax_weights(const W* logits, const int32_t* chosen, W* weights) const {
    for (int64_t j = 0; j < rule_.per_token; ++j) {
      weights[j] = logits[chosen[j]];
    }
    const RowExp<W> all(logits, experts_);
    const RowExp<W> row = rule_.normalize ? RowExp<W>(weights, rule_.per_token) : all;
    const W scale = std::isnan(all.total) ? all.total : W(rule_.scale);
    for (int64_t j = 0; j < rule_.per_token; ++j) {
      weights[j] = scale * row.softmax(weights[j]);
    }
  }

  RouterRule rule_;
  ForcedChoice forced_;
  int64_t experts_;
};

template <class W>
CpuKernel route_kernel(const OpSpec& spec, int num_workers) {
  const auto attributes = attributes_of<RouteAttributes>(spec);
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t experts = spec.operands[0].shape[1];
  const int64_t groups = attributes.rule.groups;
  const int64_t per_token = attributes.rule.per_token;
  const size_t bytes = TokenScratch<W>::bytes(experts, groups);
  const size_t weights = attributes.weights_operand();
  const auto run = [=, router = Router<W>(spec)](const KernelArgs& args) {
    const W* const logits = args.data<const W>(0);
    const W* const bias = attributes.has_bias ? args.data<const W>(1) : nullptr;
    const int32_t* const given =
        attributes.source.given ? args.data<const int32_t>(weights - 1) : nullptr;
    run_pieces(args.workers, rows, row_grain(experts * per_token),
               [&](int worker, int64_t begin, int64_t end) {
                 const TokenScratch<W> scratch(
                     args.scratch.data() + static_cast<size_t>(worker) * bytes, experts, groups);
                 for (int64_t t = begin; t < end; ++t) {
                   router.run_token(t, logits + t * experts, bias,
                                    given == nullptr ? nullptr : given + t * per_token, scratch,
                                    args.data<W>(weights) + t * per_token,
                                    args.data<int32_t>(weights + 1) + t * per_token);
                 }
               });
  };
  return {.run = run, .scratch_bytes = bytes * static_cast<size_t>(num_workers)};
}

/// The choice of one token, and the gradient of its weights.
template <class W>
struct TokenChoice {
  const W* weights = nullptr;        // [K]
  const int32_t* experts = nullptr;  // [K]
  const W* d_weights = nullptr;      // [K]
};

/// With w the weights, r the scale, p the softmax and s the sigmoids:
///   softmax, normalised   d_logit = w (dw - sum(w dw) / r), of chosen experts
///   softmax               d_logit = p (r dw - sum(w dw)), of all experts; dw = 0 if not chosen
///   sigmoid, normalised   d_logit = (r dw - sum(w dw)) / (sum(s) + tiny) s (1 - s)
///   sigmoid               d_logit = r dw s (1 - s)
template <class W>
void route_backward_token(const RouterRule& rule, const W* logits, const TokenChoice<W>& choice,
                          int64_t experts, W* d_logits) {
  const W scale = W(rule.scale);
  W sum = 0;
  W scores = W(kTinySum);
  for (int64_t j = 0; j < rule.per_token; ++j) {
    sum += choice.weights[j] * choice.d_weights[j];
    scores += rule.sigmoid ? vector_math::sigmoid(logits[choice.experts[j]]) : W(0);
  }
  std::fill_n(d_logits, experts, W(0));
  if (!rule.sigmoid && !rule.normalize) {
    const RowExp<W> row(logits, experts);
    for (int64_t e = 0; e < experts; ++e) {
      d_logits[e] = -row.softmax(logits[e]) * sum;
    }
  }
  for (int64_t j = 0; j < rule.per_token; ++j) {
    const W d = choice.d_weights[j];
    const W w = choice.weights[j];
    W& d_logit = d_logits[choice.experts[j]];
    if (!rule.sigmoid) {
      d_logit += rule.normalize ? w * (d - sum / scale) : w * d;
      continue;
    }
    const W s = vector_math::sigmoid(logits[choice.experts[j]]);
    d_logit = (rule.normalize ? (scale * d - sum) / scores : scale * d) * s * (W(1) - s);
  }
}

template <class W>
CpuKernel route_backward_kernel(const OpSpec& spec) {
  const auto rule = attributes_of<RouterRule>(spec);
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t experts = spec.operands[0].shape[1];
  return {.run = [=](const KernelArgs& args) {
    run_pieces(args.workers, rows, row_grain(experts), [&](int, int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t at = t * rule.per_token;
        route_backward_token<W>(rule, args.data<const W>(0) + t * experts,
                                {.weights = args.data<const W>(1) + at,
                                 .experts = args.data<const int32_t>(2) + at,
                                 .d_weights = args.data<const W>(3) + at},
                                experts, args.data<W>(4) + t * experts);
      }
    });
  }};
}

template <class W>
CpuKernel count_choices_kernel(const OpSpec& spec) {
  const bool accumulate = attributes_of<RouterGradAttributes>(spec).accumulate;
  const Shape chosen = spec.operands[0].shape;
  const int64_t experts = spec.operands[1].shape[0];
  const int64_t divisor = std::gcd(experts, chosen[1]);
  const int64_t experts_over = experts / divisor;
  const int64_t per_token_over = chosen[1] / divisor;
  const auto per_choice = static_cast<W>(experts_over);
  const auto mean = static_cast<W>(chosen[0] * per_token_over);
  return {.run = [=](const KernelArgs& args) {
    const auto* const choices = args.data<const int32_t>(0);
    W* const d_bias = args.data<W>(1);
    for (int64_t e = 0; e < experts; ++e) {
      d_bias[e] = (accumulate ? d_bias[e] : W(0)) - mean;
    }
    for (int64_t i = 0; i < chosen.num_elems(); ++i) {
      d_bias[choices[i]] += per_choice;
    }
  }};
}

CpuKernel count_by_sequence_kernel(const OpSpec& spec) {
  const auto rows = attributes_of<SequenceRows>(spec);
  const Shape chosen = spec.operands[0].shape;
  const Shape shape = spec.operands[1].shape;
  return {.run = [=](const KernelArgs& args) {
    const auto* const choices = args.data<const int32_t>(0);
    auto* const counts = args.data<float>(1);
    std::fill_n(counts, shape.num_elems(), 0.0f);
    for (int64_t i = 0; i < chosen.num_elems(); ++i) {
      counts[rows.of(i / chosen[1]) * shape[1] + choices[i]] += 1.0f;
    }
  }};
}

}  // namespace

CpuKernel make_route(const OpSpec& spec, int num_workers) {
  return dispatch_accumulator(spec, [&]<class W>() { return route_kernel<W>(spec, num_workers); });
}

CpuKernel make_route_backward(const OpSpec& spec, int /*num_workers*/) {
  return dispatch_accumulator(spec, [&]<class W>() { return route_backward_kernel<W>(spec); });
}

CpuKernel make_count_choices(const OpSpec& spec, int /*num_workers*/) {
  return spec.operands[1].dtype == DType::kF64 ? count_choices_kernel<double>(spec)
                                               : count_choices_kernel<float>(spec);
}

CpuKernel make_count_by_sequence(const OpSpec& spec, int /*num_workers*/) {
  return count_by_sequence_kernel(spec);
}

}  // namespace braid
