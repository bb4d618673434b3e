#include "ops/attention.h"

#include "support/kernel_harness.h"

namespace braid {
namespace {

constexpr size_t kQkv = 0;
constexpr size_t kOut = 1, kLse = 2;                            // of the forward
constexpr size_t kOutIn = 1, kLseIn = 2, kDOut = 3, kDQkv = 4;  // of the backward

struct AttentionCase {
  AttentionAttributes attributes;
  int64_t batches = 1;

  int64_t rows() const { return batches * attributes.sequence; }
  int64_t qkv_width() const {
    return (attributes.heads + 2 * attributes.kv_heads) * attributes.head_size;
  }
  int64_t out_width() const { return attributes.heads * attributes.head_size; }
  Shape lse_shape() const { return {batches, attributes.heads, attributes.sequence}; }

  OpSpec forward(DType dtype) const {
    return {.op = "attention",
            .attributes = to_attributes(attributes),
            .operands = {read(dtype, {rows(), qkv_width()}), write(dtype, {rows(), out_width()}),
                         write(wide(dtype), lse_shape())}};
  }
  OpSpec backward(DType dtype) const {
    return {.op = "attention_backward",
            .attributes = to_attributes(attributes),
            .operands = {read(dtype, {rows(), qkv_width()}), read(dtype, {rows(), out_width()}),
                         read(wide(dtype), lse_shape()), read(dtype, {rows(), out_width()}),
                         write(dtype, {rows(), qkv_width()})}};
  }
};

AttentionCase make_case(int64_t heads, int64_t kv_heads, int64_t head_size, int64_t sequence,
                        int64_t batches, double scale = 0) {
  const double natural = 1.0 / std::sqrt(static_cast<double>(head_size));
  return {{.heads = heads,
           .kv_heads = kv_heads,
           .head_size = head_size,
           .sequence = sequence,
           .scale = scale > 0 ? scale : natural},
          batches};
}

/// 1, primes, one less and one more than the kernel's blocks of 64 queries and 256 keys.
std::vector<AttentionCase> awkward_cases() {
  return {make_case(1, 1, 1, 1, 1),    make_case(3, 1, 5, 1, 4),   make_case(2, 2, 3, 2, 1),
          make_case(4, 2, 7, 31, 2),   make_case(1, 1, 64, 63, 1), make_case(3, 3, 17, 64, 1),
          make_case(2, 1, 32, 65, 2),  make_case(6, 2, 8, 127, 1), make_case(1, 1, 96, 129, 1),
          make_case(2, 1, 12, 257, 1), make_case(1, 1, 4, 521, 1), make_case(2, 2, 128, 67, 1)};
}

AttentionCase in_window(AttentionCase c, int64_t window) {
  c.attributes.window.window = window;
  return c;
}

/// Windows of one key, of one less and one more than the kernel's blocks, and longer than the
/// sequence.
std::vector<AttentionCase> window_cases() {
  return {in_window(make_case(2, 1, 5, 31, 2), 1),    in_window(make_case(4, 2, 7, 65, 1), 3),
          in_window(make_case(3, 1, 8, 257, 1), 63),  in_window(make_case(2, 2, 4, 330, 2), 64),
          in_window(make_case(2, 1, 12, 521, 1), 65), in_window(make_case(1, 1, 6, 700, 1), 257),
          in_window(make_case(1, 1, 6, 600, 1), 599), in_window(make_case(1, 1, 6, 70, 1), 71)};
}

std::vector<AttentionCase> all_cases() {
  std::vector<AttentionCase> cases = awkward_cases();
  for (const AttentionCase& c : window_cases()) {
    cases.push_back(c);
  }
  return cases;
}

std::string name_of(const AttentionCase& c) {
  return fmt::format("heads {} kv_heads {} head_size {} sequence {} batches {} window {}",
                     c.attributes.heads, c.attributes.kv_heads, c.attributes.head_size,
                     c.attributes.sequence, c.batches, c.attributes.window.window);
}

/// The textbook, one query at a time.
class NaiveAttention {
 public:
  NaiveAttention(const AttentionCase& attention_case, std::vector<double> qkv)
      : c_(attention_case),
        qkv_(std::move(qkv)),
        out(static_cast<size_t>(c_.rows() * c_.out_width())),
        lse(static_cast<size_t>(c_.lse_shape().num_elems())),
        d_qkv(qkv_.size()) {
    for_each_query([&](int64_t batch, int64_t head, int64_t query) { attend(batch, head, query); });
  }

  void backward(const std::vector<double>& d_out) {
    for_each_query([&](int64_t batch, int64_t head, int64_t query) {
      attend_backward(batch, head, query, d_out);
    });
  }

 private:
  const AttentionCase c_;
  const std::vector<double> qkv_;

 public:
  std::vector<double> out;
  std::vector<double> lse;
  std::vector<double> d_qkv;

 private:
  template <class F>
  void for_each_query(const F& f) const {
    for (int64_t batch = 0; batch < c_.batches; ++batch) {
      for (int64_t head = 0; head < c_.attributes.heads; ++head) {
        for (int64_t query = 0; query < c_.attributes.sequence; ++query) {
          f(batch, head, query);
        }
      }
    }
  }
  /// Where a head's vector starts in qkv: number `slot` of the packed heads of a row.
  size_t at(int64_t batch, int64_t position, int64_t slot) const {
    return static_cast<size_t>((batch * c_.attributes.sequence + position) * c_.qkv_width() +
                               slot * c_.attributes.head_size);
  }
  size_t out_at(int64_t batch, int64_t position, int64_t head) const {
    return static_cast<size_t>((batch * c_.attributes.sequence + position) * c_.out_width() +
                               head * c_.attributes.head_size);
  }
  int64_t key_slot(int64_t head) const {
    return c_.attributes.heads + head / (c_.attributes.heads / c_.attributes.kv_heads);
  }
  int64_t value_slot(int64_t head) const { return key_slot(head) + c_.attributes.kv_heads; }
  double dot_heads(const std::vector<double>& a, size_t i, const std::vector<double>& b,
                   size_t j) const {
    double sum = 0;
    for (size_t d = 0; d < static_cast<size_t>(c_.attributes.head_size); ++d) {
      sum += a[i + d] * b[j + d];
    }
    return sum;
  }
  void add_scaled(std::vector<double>& to, size_t i, double factor, const std::vector<double>& from,
                  size_t j) const {
    for (size_t d = 0; d < static_cast<size_t>(c_.attributes.head_size); ++d) {
      to[i + d] += factor * from[j + d];
    }
  }
  double& lse_of(int64_t batch, int64_t head, int64_t query) {
    return lse[static_cast<size_t>((batch * c_.attributes.heads + head) * c_.attributes.sequence +
                                   query)];
  }

  /// Sets lse of the query; returns its probabilities.
  std::vector<double> probabilities(int64_t batch, int64_t head, int64_t query) {
    std::vector<double> p;
    for (int64_t key = 0; key <= query; ++key) {
      p.push_back(c_.attributes.scale *
                  dot_heads(qkv_, at(batch, query, head), qkv_, at(batch, key, key_slot(head))));
      if (const int64_t window = c_.attributes.window.window; window > 0 && key <= query - window) {
        p.back() = -std::numeric_limits<double>::infinity();
      }
    }
    const double max = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (const double score : p) {
      sum += std::exp(score - max);
    }
    lse_of(batch, head, query) = max + std::log(sum);
    for (double& score : p) {
      score = std::exp(score - max) / sum;
    }
    return p;
  }

  void attend(int64_t batch, int64_t head, int64_t query) {
    const std::vector<double> p = probabilities(batch, head, query);
    for (int64_t key = 0; key <= query; ++key) {
      add_scaled(out, out_at(batch, query, head), p[static_cast<size_t>(key)], qkv_,
                 at(batch, key, value_slot(head)));
    }
  }

  void attend_backward(int64_t batch, int64_t head, int64_t query,
                       const std::vector<double>& d_out) {
    const std::vector<double> p = probabilities(batch, head, query);
    const size_t o = out_at(batch, query, head);
    std::vector<double> d_p;
    for (int64_t key = 0; key <= query; ++key) {
      d_p.push_back(dot_heads(d_out, o, qkv_, at(batch, key, value_slot(head))));
    }
    const double mean = dot(p, d_p);
    for (int64_t key = 0; key <= query; ++key) {
      const auto i = static_cast<size_t>(key);
      const double d_score = c_.attributes.scale * p[i] * (d_p[i] - mean);
      const size_t k = at(batch, key, key_slot(head));
      add_scaled(d_qkv, at(batch, query, head), d_score, qkv_, k);
      add_scaled(d_qkv, k, d_score, qkv_, at(batch, query, head));
      add_scaled(d_qkv, at(batch, key, value_slot(head)), p[i], d_out, o);
    }
  }
};

KernelCase backward_case(const AttentionCase& c, const KernelCase& forward, DType dtype) {
  KernelCase backward(c.backward(dtype), 5);
  backward.set(kQkv, forward.values(kQkv));
  backward.set(kOutIn, forward.values(kOut));
  backward.set(kLseIn, forward.values(kLse));
  return backward;
}

// Inputs are below 1, so |score| <= sqrt(head_size) <= 11.4 and its error, times e, is what the
// probabilities' relative error is made of; sums have up to 521 terms. A gradient adds up to
// 521 * 3 terms below 1 whose probabilities sum up to few; bf16 rounds the result, and out.
double arithmetic_error(DType dtype) {
  return 100 * rounding_error(wide(dtype));
}

TEST(Attention, MatchesTextbookOnAwkwardSizes) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const AttentionCase& c : all_cases()) {
      KernelCase kernel(c.forward(dtype));
      kernel.run(2);
      const NaiveAttention naive(c, kernel.values(kQkv));
      expect_close(kernel.values(kOut), naive.out,
                   {.absolute = arithmetic_error(dtype), .relative = rounding_error(dtype)},
                   "out " + name_of(c));
      expect_close(kernel.values(kLse), naive.lse, {.absolute = arithmetic_error(dtype)},
                   "lse " + name_of(c));
    }
  }
}

TEST(AttentionBackward, MatchesTextbookOnAwkwardSizes) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const AttentionCase& c : all_cases()) {
      KernelCase forward(c.forward(dtype));
      forward.run();
      KernelCase backward = backward_case(c, forward, dtype);
      backward.run(2);
      NaiveAttention naive(c, forward.values(kQkv));
      naive.backward(backward.values(kDOut));
      // A bf16 `out` moves every mean by up to half a unit per element, and with it d_q and d_k.
      const double of_out = dtype == DType::kBF16 ? 10 * rounding_error(dtype) : 0.0;
      expect_close(
          backward.values(kDQkv), naive.d_qkv,
          {.absolute = 10 * arithmetic_error(dtype) + of_out, .relative = rounding_error(dtype)},
          name_of(c));
    }
  }
}

TEST(AttentionBackward, MatchesCentralDifferences) {
  for (const AttentionCase& c : {make_case(2, 1, 3, 5, 2), make_case(1, 1, 2, 67, 1),
                                 in_window(make_case(2, 1, 3, 9, 1), 4)}) {
    KernelCase forward(c.forward(DType::kF64));
    forward.run();
    KernelCase backward = backward_case(c, forward, DType::kF64);
    backward.run();
    const std::vector<double> qkv = forward.values(kQkv);
    const std::vector<double> d_out = backward.values(kDOut);
    const auto loss = [&](const std::vector<double>& x) {
      forward.set(kQkv, x);
      forward.run();
      return dot(forward.values(kOut), d_out);
    };
    expect_gradient(loss, qkv, backward.values(kDQkv), name_of(c));
  }
}

/// Documents in each of two sequences, in tokens: of one token, across blocks of 64 queries and 256
/// keys, over whole blocks.
const std::vector<std::vector<int64_t>> kDocuments = {{1, 62, 3, 250, 1, 4}, {321}, {200, 121}};

struct DocumentsCase {
  AttentionCase whole;
  std::vector<double> starts;
  std::vector<std::pair<int64_t, int64_t>> documents;  // first row, rows
};

DocumentsCase documents_case() {
  DocumentsCase c{.whole = make_case(4, 2, 8, 321, std::ssize(kDocuments))};
  c.whole.attributes.documents.documents = true;
  for (const std::vector<int64_t>& sequence : kDocuments) {
    int64_t start = 0;
    for (const int64_t tokens : sequence) {
      c.documents.emplace_back(std::ssize(c.starts), tokens);
      c.starts.insert(c.starts.end(), static_cast<size_t>(tokens), static_cast<double>(start));
      start += tokens;
    }
  }
  return c;
}

/// The spec with starts in front of operand `at`.
OpSpec with_starts(OpSpec spec, size_t at) {
  spec.operands.insert(spec.operands.begin() + static_cast<std::ptrdiff_t>(at),
                       read(DType::kI32, {spec.operands[0].shape[0]}));
  return spec;
}

std::vector<double> rows_of(const std::vector<double>& values, int64_t first, int64_t count,
                            int64_t width) {
  return {values.begin() + first * width, values.begin() + (first + count) * width};
}

// In f64 only the order of a sum over a document differs.
void expect_documents_alone(int64_t window) {
  DocumentsCase c = documents_case();
  c.whole = in_window(c.whole, window);
  KernelCase forward(with_starts(c.whole.forward(DType::kF64), 1));
  forward.set(1, c.starts);
  forward.run(2);
  KernelCase backward(with_starts(c.whole.backward(DType::kF64), 4), 5);
  backward.set(kQkv, forward.values(kQkv));
  backward.set(1, forward.values(2));
  backward.set(2, forward.values(3));
  backward.set(4, c.starts);
  backward.run(2);
  for (const auto& [row, tokens] : c.documents) {
    const AttentionCase alone = in_window(make_case(4, 2, 8, tokens, 1), window);
    KernelCase forward_alone(alone.forward(DType::kF64));
    forward_alone.set(kQkv, rows_of(forward.values(kQkv), row, tokens, alone.qkv_width()));
    forward_alone.run();
    KernelCase backward_alone = backward_case(alone, forward_alone, DType::kF64);
    backward_alone.set(kDOut, rows_of(backward.values(3), row, tokens, alone.out_width()));
    backward_alone.run();
    const std::string name = fmt::format("{} rows from {}", tokens, row);
    expect_close(rows_of(forward.values(2), row, tokens, alone.out_width()),
                 forward_alone.values(kOut), {.absolute = 1e-13}, name);
    expect_close(rows_of(backward.values(5), row, tokens, alone.qkv_width()),
                 backward_alone.values(kDQkv), {.absolute = 1e-12}, name);
  }
}

TEST(AttentionOfDocuments, EqualsThatOfEachDocumentAlone) {
  expect_documents_alone(0);
}

TEST(AttentionOfDocuments, HasWindowsInsideEachDocument) {
  for (const int64_t window : {1, 5, 70, 300}) {
    expect_documents_alone(window);
  }
}

// One document per sequence: the bits of attention that does not ask for documents.
TEST(AttentionOfDocuments, OneDocumentChangesNoBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    AttentionCase c = make_case(4, 2, 16, 301, 2);
    KernelCase plain(c.forward(dtype));
    plain.run(2);
    KernelCase plain_backward = backward_case(c, plain, dtype);
    plain_backward.run(2);
    c.attributes.documents.documents = true;
    KernelCase forward(with_starts(c.forward(dtype), 1));
    forward.set_all(1, 0.0);
    forward.run(2);
    KernelCase backward(with_starts(c.backward(dtype), 4), 5);
    for (const size_t operand : {kQkv, kOutIn, kLseIn, kDOut}) {
      backward.set(operand, plain_backward.values(operand));
    }
    backward.set_all(4, 0.0);
    backward.run(2);
    EXPECT_TRUE(forward.bytes(2) == plain.bytes(kOut)) << dtype_name(dtype);
    EXPECT_TRUE(forward.bytes(3) == plain.bytes(kLse)) << dtype_name(dtype);
    EXPECT_TRUE(backward.bytes(5) == plain_backward.bytes(kDQkv)) << dtype_name(dtype);
  }
}

TEST(Attention, FirstQueryCopiesItsValue) {
  const AttentionCase c = make_case(3, 1, 6, 1, 2);
  KernelCase kernel(c.forward(DType::kF32));
  kernel.run();
  const std::vector<double> qkv = kernel.values(kQkv);
  for (size_t batch = 0; batch < 2; ++batch) {
    for (size_t i = 0; i < 18; ++i) {
      EXPECT_EQ(kernel.values(kOut)[batch * 18 + i], qkv[batch * 30 + 24 + i % 6]);
    }
  }
}

TEST(Attention, SurvivesHugeScores) {
  const AttentionCase c = make_case(1, 1, 1, 300, 1, 1.0);
  for (const double sign : {1.0, -1.0}) {
    KernelCase forward(c.forward(DType::kF32));
    std::vector<double> qkv = TestRandom(9).uniforms(900, -1.0, 1.0);
    for (size_t position = 0; position < 300; ++position) {
      qkv[3 * position] = 100.0 * sign;                                   // scores of +-1e4,
      qkv[3 * position + 1] = 100.0 - static_cast<double>(position) / 4;  // 25 apart
    }
    forward.set(kQkv, qkv);
    forward.run();
    const NaiveAttention naive(c, qkv);
    expect_close(forward.values(kOut), naive.out, {.absolute = 1e-6}, "out");
    expect_close(forward.values(kLse), naive.lse, {.relative = 1e-6}, "lse");
    KernelCase backward = backward_case(c, forward, DType::kF32);
    backward.run();
    for (const double d : backward.values(kDQkv)) {
      ASSERT_TRUE(std::isfinite(d));
    }
  }
}

/// What a query may not see must not reach it, not even as NaN times 0.
TEST(Attention, LaterTokensDoNotReachEarlierQueries) {
  const AttentionCase c = make_case(2, 1, 4, 150, 1);
  KernelCase kernel(c.forward(DType::kF32));
  std::vector<double> qkv = kernel.values(kQkv);
  kernel.run();
  const std::vector<double> before = kernel.values(kOut);
  TestRandom random(11);
  for (size_t i = 100 * 16; i < qkv.size(); ++i) {
    qkv[i] = random.uniform(-50.0, 50.0);
  }
  kernel.set(kQkv, qkv);
  kernel.run();
  const std::vector<double> after = kernel.values(kOut);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 100 * 8, after.begin()));
  EXPECT_FALSE(std::equal(before.begin() + 100 * 8, before.end(), after.begin() + 100 * 8));
}

TEST(Attention, NanReachesTheQueriesThatSeeIt) {
  const AttentionCase c = make_case(1, 1, 4, 300, 1);
  KernelCase kernel(c.forward(DType::kF32));
  std::vector<double> qkv = kernel.values(kQkv);
  qkv[200 * 12 + 5] = std::numeric_limits<double>::quiet_NaN();  // a key
  kernel.set(kQkv, qkv);
  kernel.run();
  const std::vector<double> out = kernel.values(kOut);
  for (size_t query = 0; query < 300; ++query) {
    EXPECT_EQ(std::isnan(out[query * 4]), query >= 200) << query;
  }
}

TEST(Attention, WorkersDoNotChangeResults) {
  const AttentionCase c = make_case(6, 3, 16, 301, 2);
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    KernelCase forward(c.forward(dtype));
    forward.run(1);
    const std::vector<std::byte> out = forward.bytes(kOut);
    const std::vector<std::byte> lse = forward.bytes(kLse);
    KernelCase backward = backward_case(c, forward, dtype);
    backward.run(1);
    const std::vector<std::byte> d_qkv = backward.bytes(kDQkv);
    for (const int workers : {2, 3}) {
      forward.run(workers);
      EXPECT_TRUE(forward.bytes(kOut) == out) << workers << " workers, " << dtype_name(dtype);
      EXPECT_TRUE(forward.bytes(kLse) == lse) << workers << " workers, " << dtype_name(dtype);
      backward.run(workers);
      EXPECT_TRUE(backward.bytes(kDQkv) == d_qkv) << workers << " workers, " << dtype_name(dtype);
    }
  }
}

}  // namespace
}  // namespace braid
