#include <cmath>

#include "backends/cpu/kernels/factories.h"
#include "backends/cpu/kernels/router_rows.h"
#include "ops/attributes.h"
#include "ops/router.h"

// Per token, with p as in ops/router.h and f the share of rows of each expert, in all sequences or
// in that of the token:
//   balance = sum(f p), z = lse^2
// Gradients: softmax p (f - sum(f p)); sigmoid s (1 - s) / sum(s) (f - sum(f p)); 2 lse softmax.
namespace braid {
namespace {

template <class W>
struct LossOperands {
  const W* logits = nullptr;      // [T,E]
  const float* counts = nullptr;  // [S,E]; S is 1 without sequences
  const W* loss_scale = nullptr;  // [1]

  explicit LossOperands(const KernelArgs& args)
      : logits(args.data<const W>(0)),
        counts(args.data<const float>(1)),
        loss_scale(args.data<const W>(2)) {}
};

/// f: what share of all rows each expert has.
template <class W>
void fill_shares(const float* counts, int64_t experts, W* shares) {
  double total = 0;
  for (int64_t e = 0; e < experts; ++e) {
    total += static_cast<double>(counts[e]);
  }
  for (int64_t e = 0; e < experts; ++e) {
    shares[e] = total == 0 ? W(0) : static_cast<W>(static_cast<double>(counts[e]) / total);
  }
}

/// The same for each sequence: [S,E].
template <class W>
void fill_all_shares(const float* counts, int64_t sequences, int64_t experts, W* shares) {
  for (int64_t s = 0; s < sequences; ++s) {
    fill_shares(counts + s * experts, experts, shares + s * experts);
  }
}

/// Of one token.
template <class W>
struct Balance {
  W score_sum = 0;  ///< sigmoid: what scores are divided by
  W loss = 0;       ///< sum of f p
};

template <class W>
W score_of(bool sigmoid, const RowExp<W>& row, W logit) {
  return sigmoid ? vector_math::sigmoid(logit) : row.softmax(logit);
}

template <class W>
Balance<W> balance_of(bool sigmoid, const RowExp<W>& row, const W* logits, const W* shares,
                      int64_t experts) {
  W sum = sigmoid ? W(kTinySum) : W(0);
  W weighted = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const W score = score_of(sigmoid, row, logits[e]);
    sum += sigmoid ? score : W(0);
    weighted += shares[e] * score;
  }
  return {sum, sigmoid ? weighted / sum : weighted};
}

/// Scratch: the shares, then two numbers per token.
template <class W>
size_t shares_bytes(int64_t shares) {
  return align_scratch(static_cast<size_t>(shares) * sizeof(W));
}

int64_t num_sequences(const OpSpec& spec) {
  const Shape& counts = spec.operands[1].shape;
  return counts.rank() == 2 ? counts[0] : 1;
}

template <class W>
CpuKernel losses_kernel(const OpSpec& spec) {
  const auto attributes = attributes_of<RouterLossAttributes>(spec);
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t experts = spec.operands[0].shape[1];
  const int64_t sequences = num_sequences(spec);
  const auto run = [=](const KernelArgs& args) {
    W* const losses = args.data<W>(3);
    if (!attributes.adds) {
      std::fill_n(losses, 2, W(0));
      return;
    }
    const LossOperands<W> o(args);
    W* const shares = reinterpret_cast<W*>(args.scratch.data());
    W* const of_tokens =
        reinterpret_cast<W*>(args.scratch.data() + shares_bytes<W>(sequences * experts));
    fill_all_shares(o.counts, sequences, experts, shares);
    run_pieces(args.workers, rows, row_grain(experts), [&](int, int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const W* const logits = o.logits + t * experts;
        const RowExp<W> row(logits, experts);
        const W* const own = shares + attributes.rows.of(t) * experts;
        of_tokens[2 * t] = balance_of(attributes.sigmoid, row, logits, own, experts).loss;
        of_tokens[2 * t + 1] = row.log_sum() * row.log_sum();
      }
    });
    double sums[2] = {0, 0};  // in the order of tokens
    for (int64_t i = 0; i < 2 * rows; ++i) {
      sums[i % 2] += static_cast<double>(of_tokens[i]);
    }
    const auto scale = static_cast<double>(*o.loss_scale);
    losses[0] = static_cast<W>(scale * attributes.balance * static_cast<double>(experts) * sums[0]);
    losses[1] = static_cast<W>(scale * attributes.z * sums[1]);
  };
  return {.run = run,
          .scratch_bytes = shares_bytes<W>(sequences * experts) +
                           align_scratch(static_cast<size_t>(2 * rows) * sizeof(W))};
}

/// The factors of the gradients of one token.
template <class W>
struct LossFactors {
  W balance = 0;
  W z = 0;
};

template <class W>
void losses_backward_token(bool sigmoid, const LossFactors<W>& factors, const W* logits,
                           const W* shares, int64_t experts, W* d_logits) {
  const RowExp<W> row(logits, experts);
  const Balance<W> balance = balance_of(sigmoid, row, logits, shares, experts);
  const W z_slope = factors.z == W(0) ? W(0) : W(2) * factors.z * row.log_sum();
  for (int64_t e = 0; e < experts; ++e) {
    const W p = row.softmax(logits[e]);
    const W s = score_of(sigmoid, row, logits[e]);
    const W slope = sigmoid ? s * (W(1) - s) / balance.score_sum : p;
    d_logits[e] = factors.balance * slope * (shares[e] - balance.loss) + z_slope * p;
  }
}

template <class W>
CpuKernel losses_backward_kernel(const OpSpec& spec) {
  const auto attributes = attributes_of<RouterLossAttributes>(spec);
  const int64_t rows = spec.operands[0].shape[0];
  const int64_t experts = spec.operands[0].shape[1];
  const int64_t sequences = num_sequences(spec);
  const auto run = [=](const KernelArgs& args) {
    W* const d_logits = args.data<W>(3);
    if (!attributes.adds) {
      std::fill_n(d_logits, rows * experts, W(0));
      return;
    }
    const LossOperands<W> o(args);
    W* const shares = reinterpret_cast<W*>(args.scratch.data());
    fill_all_shares(o.counts, sequences, experts, shares);
    const W scale = *o.loss_scale;
    const LossFactors<W> factors{scale * W(attributes.balance * static_cast<double>(experts)),
                                 scale * W(attributes.z)};
    run_pieces(args.workers, rows, row_grain(experts), [&](int, int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        losses_backward_token(attributes.sigmoid, factors, o.logits + t * experts,
                              shares + attributes.rows.of(t) * experts, experts,
                              d_logits + t * experts);
      }
    });
  };
  return {.run = run, .scratch_bytes = shares_bytes<W>(sequences * experts)};
}

}  // namespace

CpuKernel make_router_losses(const OpSpec& spec, int /*num_workers*/) {
  return dispatch_accumulator(spec, [&]<class W>() { return losses_kernel<W>(spec); });
}

CpuKernel make_router_losses_backward(const OpSpec& spec, int /*num_workers*/) {
  return dispatch_accumulator(spec, [&]<class W>() { return losses_backward_kernel<W>(spec); });
}

}  // namespace braid
