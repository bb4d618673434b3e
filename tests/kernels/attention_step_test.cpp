#include "ops/attention_step.h"

#include "ops/context_attention.h"
#include "support/kernel_harness.h"

namespace braid {
namespace {

constexpr size_t kQkv = 0, kKv = 1, kSum = 2, kLse = 3;  // of a step
constexpr size_t kOutIn = 2, kLseIn = 3, kDOut = 4, kDq = 5, kDkv = 6;

struct StepCase {
  AttentionStepAttributes a;
  int64_t batches = 1;

  Shape qkv() const { return {batches * a.sequence, (a.heads + 2 * a.kv_heads) * a.head_size}; }
  Shape kv() const { return {batches * a.kv_sequence, 2 * a.kv_heads * a.head_size}; }
  Shape out() const { return {batches * a.sequence, a.heads * a.head_size}; }
  Shape lse() const { return {batches, a.heads, a.sequence}; }

  OpSpec forward(DType dtype) const {
    return {.op = "attention_step",
            .attributes = to_attributes(a),
            .operands = {read(dtype, qkv()), read(dtype, kv()),
                         gradient(a.accumulate, wide(dtype), out()),
                         gradient(a.accumulate, wide(dtype), lse())}};
  }
  OpSpec backward(DType dtype, bool accumulate_q, bool accumulate_kv) const {
    const AttentionStepBackwardAttributes attributes{
        .step = a, .accumulate_q = accumulate_q, .accumulate_kv = accumulate_kv};
    return {.op = "attention_step_backward",
            .attributes = to_attributes(attributes),
            .operands = {read(dtype, qkv()), read(dtype, kv()), read(dtype, out()),
                         read(wide(dtype), lse()), read(dtype, out()),
                         gradient(accumulate_q, wide(dtype), out()),
                         gradient(accumulate_kv, wide(dtype), kv())}};
  }
  std::string name() const {
    return fmt::format("heads {}/{} x {}, queries {}+{} of {}, keys {}+{} of {}{}, window {}",
                       a.heads, a.kv_heads, a.head_size, a.query_begin, a.queries, a.sequence,
                       a.key_begin, a.keys, a.kv_sequence, a.causal ? ", causal" : "",
                       a.window.limit.window);
  }
};

/// Whole ranges and parts, with and without mask; one less and one more than the kernel's blocks of
/// 64 queries and 256 keys; masks whose edge crosses blocks anywhere.
std::vector<StepCase> awkward_cases() {
  const auto make = [](AttentionStepAttributes a, int64_t batches) {
    a.scale = 1.0 / std::sqrt(static_cast<double>(a.head_size));
    return StepCase{a, batches};
  };
  using A = AttentionStepAttributes;
  return {
      make(A{1, 1, 1, 1, 1, 0, 0, 1, 0, 1, true}, 2),
      make(A{4, 2, 7, 6, 6, 0, 0, 6, 0, 6, true}, 2),
      make(A{4, 2, 7, 6, 6, 0, 3, 3, 0, 6, false}, 2),
      make(A{4, 2, 7, 6, 6, 0, 0, 6, 0, 3, false}, 3),
      make(A{3, 1, 5, 10, 14, 0, 2, 5, 3, 9, true}, 2),
      make(A{2, 2, 8, 130, 300, 0, 1, 129, 7, 257, false}, 1),
      make(A{2, 1, 6, 65, 400, 0, 0, 65, 0, 321, true}, 1),
      make(A{1, 1, 16, 128, 128, 0, 0, 128, 0, 128, true}, 1),
      make(A{1, 1, 4, 70, 263, 0, 5, 63, 0, 260, true}, 1),
  };
}

/// Positions of the tokens of rank 0 and 1 of two, of a sequence in zig-zag order.
constexpr int64_t kChunk = 70;
constexpr TokenPositions kOfRank[] = {
    {.first_begin = 0, .second_begin = 3 * kChunk, .split = kChunk},
    {.first_begin = kChunk, .second_begin = 2 * kChunk, .split = kChunk}};

StepCase in_window(StepCase c, int64_t window, const TokenPositions& queries) {
  c.a.window = {.limit = {.window = window}, .query_positions = queries};
  return c;
}

/// Steps with windows that end anywhere in blocks, and hide some queries' keys or those of all.
std::vector<StepCase> window_cases() {
  using A = AttentionStepAttributes;
  constexpr int64_t kLocal = 2 * kChunk;
  std::vector<StepCase> cases;
  for (const int64_t window : {1, 2, 33, 71, 140, 200}) {
    const auto add = [&](A a, const TokenPositions& queries, const TokenPositions& keys) {
      a.scale = 0.5;
      a.key_positions = keys;
      cases.push_back(in_window({a, 2}, window, queries));
    };
    add(A{4, 2, 4, kLocal, kLocal, 0, 0, kLocal, 0, kLocal, true}, kOfRank[1], kOfRank[1]);
    add(A{4, 2, 4, kLocal, kLocal, 0, 0, kLocal, 0, kChunk, false}, kOfRank[1], kOfRank[0]);
    add(A{2, 1, 4, kLocal, kLocal, 0, kChunk, kChunk, 0, kLocal, false}, kOfRank[0], kOfRank[1]);
    add(A{2, 1, 4, kLocal, 2 * kLocal, 0, kChunk, kChunk, 65, 3 * kChunk - 65, true}, kOfRank[1],
        {});
    add(A{1, 1, 4, kLocal, 512, 0, 3, 130, 40, 320, true}, {.second_begin = 230}, {});
  }
  return cases;
}

/// The textbook, one query at a time: sum and lse of the queries of the range.
struct Naive {
  std::vector<double> out;
  std::vector<double> lse;
  std::vector<double> d_q;
  std::vector<double> d_kv;
};

class NaiveStep {
 public:
  /// `starts` of documents; empty: there is one.
  NaiveStep(const StepCase& c, const std::vector<double>& qkv, const std::vector<double>& kv,
            std::vector<double> starts = {})
      : c_(c), a_(c.a), qkv_(qkv), kv_(kv), starts_(std::move(starts)) {}

  Naive forward() {
    Naive result;
    result.out.assign(size_of(c_.out()), 0.0);
    result.lse.assign(size_of(c_.lse()), -std::numeric_limits<double>::infinity());
    for_each_query([&](int64_t batch, int64_t head, int64_t query) {
      std::vector<double> p = scores(batch, head, query);
      if (std::isinf(*std::max_element(p.begin(), p.end()))) {
        return;  // no key
      }
      const double max = *std::max_element(p.begin(), p.end());
      double total = 0;
      for (const double score : p) {
        total += std::exp(score - max);
      }
      for (size_t i = 0; i < p.size(); ++i) {
        add(result.out, q_row(batch, query) * a_.heads + head, std::exp(p[i] - max) / total, kv_,
            value(batch, head, static_cast<int64_t>(i)));
      }
      result.lse[lse_at(batch, head, query)] = max + std::log(total);
    });
    return result;
  }

  /// `out` and `lse` may be those of more keys than this step's.
  Naive backward(const std::vector<double>& out, const std::vector<double>& lse,
                 const std::vector<double>& d_out) {
    Naive result;
    result.d_q.assign(size_of(c_.out()), 0.0);
    result.d_kv.assign(size_of(c_.kv()), 0.0);
    for_each_query([&](int64_t batch, int64_t head, int64_t query) {
      const std::vector<double> s = scores(batch, head, query);
      const int64_t o = q_row(batch, query) * a_.heads + head;
      const double mean = product(out, o, d_out, o);
      for (size_t i = 0; i < s.size(); ++i) {
        const auto key = static_cast<int64_t>(i);
        const double p = std::exp(s[i] - lse[lse_at(batch, head, query)]);
        const double d = a_.scale * p * (product(d_out, o, kv_, value(batch, head, key)) - mean);
        add(result.d_q, o, d, kv_, this->key(batch, head, key));
        add(result.d_kv, this->key(batch, head, key), d, qkv_, q_slot(batch, head, query));
        add(result.d_kv, value(batch, head, key), p, d_out, o);
      }
    });
    return result;
  }

 private:
  static size_t size_of(const Shape& shape) { return static_cast<size_t>(shape.num_elems()); }

  template <class F>
  void for_each_query(const F& f) const {
    for (int64_t batch = 0; batch < c_.batches; ++batch) {
      for (int64_t head = 0; head < a_.heads; ++head) {
        for (int64_t query = 0; query < a_.queries; ++query) {
          f(batch, head, query);
        }
      }
    }
  }
  // Vectors of head_size elements by number.
  int64_t q_row(int64_t batch, int64_t query) const {
    return batch * a_.sequence + a_.query_begin + query;
  }
  int64_t q_slot(int64_t batch, int64_t head, int64_t query) const {
    return q_row(batch, query) * (a_.heads + 2 * a_.kv_heads) + head;
  }
  int64_t key(int64_t batch, int64_t head, int64_t key) const {
    return (batch * a_.kv_sequence + a_.key_begin + key) * 2 * a_.kv_heads +
           head / (a_.heads / a_.kv_heads);
  }
  int64_t value(int64_t batch, int64_t head, int64_t key_index) const {
    return key(batch, head, key_index) + a_.kv_heads;
  }
  size_t lse_at(int64_t batch, int64_t head, int64_t query) const {
    return static_cast<size_t>((batch * a_.heads + head) * a_.sequence + a_.query_begin + query);
  }
  double product(const std::vector<double>& x, int64_t i, const std::vector<double>& y,
                 int64_t j) const {
    double sum = 0;
    for (int64_t d = 0; d < a_.head_size; ++d) {
      sum += x[static_cast<size_t>(i * a_.head_size + d)] *
             y[static_cast<size_t>(j * a_.head_size + d)];
    }
    return sum;
  }
  void add(std::vector<double>& to, int64_t i, double factor, const std::vector<double>& from,
           int64_t j) const {
    for (int64_t d = 0; d < a_.head_size; ++d) {
      to[static_cast<size_t>(i * a_.head_size + d)] +=
          factor * from[static_cast<size_t>(j * a_.head_size + d)];
    }
  }
  std::vector<double> scores(int64_t batch, int64_t head, int64_t query) const {
    const int64_t seen = a_.causal ? query + 1 + a_.keys - a_.queries : a_.keys;
    std::vector<double> list;
    for (int64_t i = 0; i < seen; ++i) {
      list.push_back(a_.scale *
                     product(qkv_, q_slot(batch, head, query), kv_, key(batch, head, i)));
      if (!starts_.empty() && static_cast<double>(a_.key_positions.of(a_.key_begin + i)) <
                                  starts_[static_cast<size_t>(q_row(batch, query))]) {
        list.back() = -std::numeric_limits<double>::infinity();
      }
      const int64_t distance = a_.window.query_positions.of(a_.query_begin + query) -
                               a_.key_positions.of(a_.key_begin + i);
      if (a_.window.is_on() && distance >= a_.window.limit.window) {
        list.back() = -std::numeric_limits<double>::infinity();
      }
    }
    return list;
  }

  const StepCase& c_;
  const AttentionStepAttributes& a_;
  const std::vector<double>& qkv_;
  const std::vector<double>& kv_;
  const std::vector<double> starts_;
};

// As in attention_test.cpp: |score| is at most a few, and a sum has few hundred terms whose
// probabilities sum up to 1. Nothing is rounded to bf16.
Tolerance tolerance(DType dtype) {
  return {.absolute = 300 * rounding_error(wide(dtype)), .relative = 0};
}

std::vector<StepCase> all_cases() {
  std::vector<StepCase> cases = awkward_cases();
  for (const StepCase& c : window_cases()) {
    cases.push_back(c);
  }
  return cases;
}

TEST(AttentionStep, MatchesTextbookOnAwkwardRanges) {
  for (const DType dtype : kFloatDtypes) {
    for (const StepCase& c : all_cases()) {
      KernelCase kernel(c.forward(dtype));
      kernel.run(2);
      const auto qkv = kernel.values(kQkv);
      const auto kv = kernel.values(kKv);
      const Naive expected = NaiveStep(c, qkv, kv).forward();
      expect_close(kernel.values(kSum), expected.out, tolerance(dtype), "sum " + c.name());
      expect_close(kernel.values(kLse), expected.lse, tolerance(dtype), "lse " + c.name());
    }
  }
}

TEST(AttentionStepBackward, MatchesTextbookOnAwkwardRanges) {
  for (const DType dtype : kFloatDtypes) {
    for (const StepCase& c : all_cases()) {
      for (const bool accumulate : {false, true}) {
        KernelCase kernel(c.backward(dtype, accumulate, !accumulate));
        // lse of more keys than these: probabilities sum up to less than 1.
        const auto qkv = kernel.values(kQkv);
        const auto kv = kernel.values(kKv);
        std::vector<double> lse = NaiveStep(c, qkv, kv).forward().lse;
        for (double& value : lse) {
          value = std::isfinite(value) ? value + 0.7 : 0.0;
        }
        kernel.set(kLseIn, lse);
        const std::vector<double> q_before = kernel.values(kDq);
        const std::vector<double> kv_before = kernel.values(kDkv);
        kernel.run(2);
        Naive expected =
            NaiveStep(c, qkv, kv)
                .backward(kernel.values(kOutIn), kernel.values(kLseIn), kernel.values(kDOut));
        for (size_t i = 0; i < q_before.size() && accumulate; ++i) {
          expected.d_q[i] += q_before[i];
        }
        for (size_t i = 0; i < kv_before.size() && !accumulate; ++i) {
          expected.d_kv[i] += kv_before[i];
        }
        const Tolerance wider{.absolute = 10 * tolerance(dtype).absolute};
        expect_close(kernel.values(kDq), expected.d_q, wider, "d_q " + c.name());
        expect_close(kernel.values(kDkv), expected.d_kv, wider, "d_kv " + c.name());
      }
    }
  }
}

/// Keys [0, keys) of all queries in pieces, merged in the given order.
struct Piece {
  int64_t begin;
  int64_t count;
};

TEST(AttentionStep, MergesPiecesInAnyOrderIntoTheWhole) {
  for (const DType dtype : kFloatDtypes) {
    StepCase whole{{.heads = 4,
                    .kv_heads = 2,
                    .head_size = 8,
                    .sequence = 9,
                    .kv_sequence = 40,
                    .scale = 3.0,  // large enough that pieces differ in weight
                    .queries = 9,
                    .keys = 40},
                   2};
    KernelCase once(whole.forward(dtype));
    once.run();
    const std::vector<Piece> pieces = {{0, 3}, {3, 17}, {20, 1}, {21, 19}};
    for (const std::vector<size_t>& order :
         {std::vector<size_t>{0, 1, 2, 3}, std::vector<size_t>{3, 1, 0, 2}}) {
      std::vector<double> sum;
      std::vector<double> lse;
      for (const size_t index : order) {
        StepCase part = whole;
        part.a.key_begin = pieces[index].begin;
        part.a.keys = pieces[index].count;
        part.a.accumulate = !sum.empty();
        KernelCase step(part.forward(dtype));
        step.set(kQkv, once.values(kQkv));
        step.set(kKv, once.values(kKv));
        if (part.a.accumulate) {
          step.set(kSum, sum);
          step.set(kLse, lse);
        }
        step.run();
        sum = step.values(kSum);
        lse = step.values(kLse);
      }
      expect_close(sum, once.values(kSum), tolerance(dtype), "sum");
      expect_close(lse, once.values(kLse), tolerance(dtype), "lse");
    }
  }
}

// -infinity is the lse of no key: the first merge into it must give no NaN.
TEST(AttentionStep, MergesIntoQueriesThatHaveSeenNothing) {
  StepCase c{{.heads = 1,
              .kv_heads = 1,
              .head_size = 2,
              .sequence = 4,
              .kv_sequence = 4,
              .query_begin = 2,
              .queries = 2,
              .keys = 4,
              .accumulate = true}};
  KernelCase kernel(c.forward(DType::kF32));
  kernel.set_all(kSum, 0.0);
  kernel.set_all(kLse, -std::numeric_limits<double>::infinity());
  kernel.run();
  const auto qkv = kernel.values(kQkv);
  const auto kv = kernel.values(kKv);
  const Naive expected = NaiveStep(c, qkv, kv).forward();
  expect_close(kernel.values(kSum), expected.out, tolerance(DType::kF32));
  expect_close(kernel.values(kLse), expected.lse, tolerance(DType::kF32));
}

/// Steps of two ranks over a sequence in zig-zag order, or over all keys, and a range of keys that
/// begins inside; chunks across blocks of 64 queries and 256 keys. Without and with a window.
std::vector<StepCase> document_cases() {
  const auto make = [&](AttentionStepAttributes a, const TokenPositions& keys) {
    a.scale = 0.5;
    a.documents.documents = true;
    a.key_positions = keys;
    return StepCase{a, 2};
  };
  using A = AttentionStepAttributes;
  constexpr int64_t kLocal = 2 * kChunk;
  std::vector<StepCase> cases = {
      make(A{4, 2, 4, kLocal, kLocal, 0, 0, kLocal, 0, kLocal, true}, kOfRank[1]),
      make(A{4, 2, 4, kLocal, kLocal, 0, 0, kLocal, 0, kChunk, false}, kOfRank[0]),
      make(A{4, 2, 4, kLocal, 2 * kLocal, 0, kChunk, kChunk, 0, 3 * kChunk, true}, {}),
      make(A{2, 1, 4, kLocal, 2 * kLocal, 0, kChunk, kChunk, 65, 3 * kChunk - 65, true}, {})};
  for (size_t i = 0, count = cases.size(); i < count; ++i) {
    cases.push_back(in_window(cases[i], 20, kOfRank[1]));
  }
  return cases;
}

/// Random documents of the sequences of rank 1 of two, for its rows.
std::vector<double> random_starts(const StepCase& c) {
  const int64_t chunk = c.a.sequence / 2;
  TestRandom random(3);
  std::vector<double> starts;
  for (int64_t batch = 0; batch < c.batches; ++batch) {
    std::vector<double> of_position;
    for (int64_t position = 0; position < 4 * chunk; ++position) {
      const bool begins = position == 0 || random.uniform(0, 1) < 0.03;
      of_position.push_back(begins ? static_cast<double>(position) : of_position.back());
    }
    starts.insert(starts.end(), of_position.begin() + chunk, of_position.begin() + 3 * chunk);
  }
  return starts;
}

// Also with sums of earlier steps, to which queries without a key add nothing.
TEST(AttentionStepOfDocuments, MatchesTextbook) {
  for (const StepCase& c : document_cases()) {
    SCOPED_TRACE(c.name());
    const std::vector<double> starts = random_starts(c);
    OpSpec spec = c.forward(DType::kF64);
    spec.operands.insert(spec.operands.begin() + 2, read(DType::kI32, {c.qkv()[0]}));
    for (const bool accumulate : {false, true}) {
      auto attributes = attributes_of<AttentionStepAttributes>(spec);
      attributes.accumulate = accumulate;
      spec.attributes = to_attributes(attributes);
      for (const size_t sum : {size_t{3}, size_t{4}}) {
        spec.operands[sum].access = accumulate ? Access::kReadWrite : Access::kWrite;
      }
      KernelCase kernel(spec);
      kernel.set(2, starts);
      const std::vector<double> before = kernel.values(3);
      const std::vector<double> lse_before = kernel.values(4);
      kernel.run(2);
      const Naive expected =
          NaiveStep(c, kernel.values(kQkv), kernel.values(kKv), starts).forward();
      std::vector<double> sum = expected.out;
      std::vector<double> lse = expected.lse;
      for (size_t i = 0; accumulate && i < sum.size(); ++i) {
        const auto width = static_cast<size_t>(c.a.heads * c.a.head_size);
        const size_t row = i / width;
        const size_t rows = static_cast<size_t>(c.a.sequence);
        const size_t head = i % width / static_cast<size_t>(c.a.head_size);
        const size_t at = (row / rows * static_cast<size_t>(c.a.heads) + head) * rows + row % rows;
        const double old_weight = std::exp(lse_before[at]);
        const double weight = std::exp(expected.lse[at]);
        sum[i] = (old_weight * before[i] + weight * expected.out[i]) / (old_weight + weight);
        lse[at] = std::log(old_weight + weight);
      }
      expect_close(kernel.values(3), sum, tolerance(DType::kF64), "sum");
      expect_close(kernel.values(4), lse, tolerance(DType::kF64), "lse");
    }
  }
}

TEST(AttentionStepBackwardOfDocuments, MatchesTextbook) {
  for (const StepCase& c : document_cases()) {
    SCOPED_TRACE(c.name());
    OpSpec spec = c.backward(DType::kF64, false, false);
    spec.operands.insert(spec.operands.begin() + 5, read(DType::kI32, {c.qkv()[0]}));
    KernelCase kernel(spec);
    const std::vector<double> starts = random_starts(c);
    kernel.set(5, starts);
    kernel.run(2);
    const Naive expected =
        NaiveStep(c, kernel.values(kQkv), kernel.values(kKv), starts)
            .backward(kernel.values(kOutIn), kernel.values(kLseIn), kernel.values(kDOut));
    expect_close(kernel.values(6), expected.d_q, {.absolute = 1e-12, .relative = 1e-12}, "d_q");
    expect_close(kernel.values(7), expected.d_kv, {.absolute = 1e-12, .relative = 1e-12}, "d_kv");
  }
}

TEST(AttentionStepBackward, MatchesCentralDifferences) {
  const StepCase c{{.heads = 2,
                    .kv_heads = 1,
                    .head_size = 3,
                    .sequence = 6,
                    .kv_sequence = 8,
                    .scale = 0.6,
                    .query_begin = 1,
                    .queries = 4,
                    .key_begin = 2,
                    .keys = 6,
                    .causal = true},
                   2};
  KernelCase forward(c.forward(DType::kF64));
  forward.run();
  KernelCase backward(c.backward(DType::kF64, false, false), 5);
  for (const size_t operand : {kQkv, kKv}) {
    backward.set(operand, forward.values(operand));
  }
  backward.set(kOutIn, forward.values(kSum));
  std::vector<double> lse = forward.values(kLse);
  std::replace(lse.begin(), lse.end(), -std::numeric_limits<double>::infinity(), 0.0);
  backward.set(kLseIn, lse);
  backward.run();
  const std::vector<double> d_out = backward.values(kDOut);
  const std::vector<double> kv = forward.values(kKv);
  const auto loss = [&](const std::vector<double>& x) {
    forward.set(kKv, x);
    forward.run();
    return dot(forward.values(kSum), d_out);
  };
  expect_gradient(loss, kv, backward.values(kDkv), "d_kv");
}

TEST(AttentionStep, WorkersDoNotChangeResults) {
  const StepCase c{{.heads = 4,
                    .kv_heads = 2,
                    .head_size = 8,
                    .sequence = 150,
                    .kv_sequence = 290,
                    .scale = 0.3,
                    .query_begin = 10,
                    .queries = 140,
                    .keys = 290,
                    .causal = true,
                    .accumulate = true},
                   2};
  for (const DType dtype : kFloatDtypes) {
    expect_same_for_any_workers([&] { return KernelCase(c.forward(dtype)); });
    expect_same_for_any_workers([&] { return KernelCase(c.backward(dtype, true, false)); });
  }
}

TEST(AttentionFinish, RoundsToTheDtypeOfOut) {
  for (const DType dtype : kFloatDtypes) {
    KernelCase kernel({"attention_finish",
                       to_attributes(AttentionFinishAttributes{}),
                       {read(wide(dtype), {5, 7}), write(dtype, {5, 7})}});
    kernel.run(2);
    std::vector<double> expected = kernel.values(0);
    for (double& value : expected) {
      value = rounded_to(dtype, value);
    }
    EXPECT_EQ(kernel.values(1), expected);
  }
}

}  // namespace
}  // namespace braid
