#include "backends/cuda/kernels/attention.h"
#include "ops/attention.h"
#include "ops/attention_step.h"
#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using AttentionDocumentsCudaTest = CudaKernelTest;

/// Random documents of `tokens` tokens on average in sequences of `sequence` positions.
std::vector<double> random_starts(int64_t batches, int64_t sequence, double tokens) {
  TestRandom random(7);
  std::vector<double> starts;
  for (int64_t i = 0; i < batches * sequence; ++i) {
    const auto position = static_cast<double>(i % sequence);
    const bool begins = position == 0 || random.uniform(0, 1) < 1 / tokens;
    starts.push_back(begins ? position : starts.back());
  }
  return starts;
}

struct DocumentsCase {
  AttentionAttributes a;
  int64_t batches;
  double tokens;  // of a document on average

  KernelCase forward() const {
    const int64_t rows = batches * a.sequence;
    KernelCase kernel(
        {"attention",
         to_attributes(a),
         {read(DType::kBF16, {rows, (a.heads + 2 * a.kv_heads) * a.head_size}),
          read(DType::kI32, {rows}), write(DType::kBF16, {rows, a.heads * a.head_size}),
          write(DType::kF32, {batches, a.heads, a.sequence})}});
    kernel.set(1, random_starts(batches, a.sequence, tokens));
    return kernel;
  }
  /// With the out and lse that belong to its qkv, both from the CPU in f64.
  KernelCase backward() const {
    KernelCase of_forward = forward();
    const OpSpec& spec = of_forward.spec();
    const Shape& out = spec.operands[2].shape;
    KernelCase kernel(
        {"attention_backward",
         spec.attributes,
         {spec.operands[0], read(DType::kBF16, out), read(DType::kF32, spec.operands[3].shape),
          read(DType::kBF16, out), spec.operands[1], write(DType::kBF16, spec.operands[0].shape)}});
    of_forward.set(0, kernel.values(0));
    const KernelCase reference = f64_reference(of_forward);
    kernel.set(1, reference.values(2));
    kernel.set(2, reference.values(3));
    kernel.set(4, of_forward.values(1));
    return kernel;
  }
  std::string name() const {
    return fmt::format("heads {}/{} x {}, sequence {}, documents of {}", a.heads, a.kv_heads,
                       a.head_size, a.sequence, tokens);
  }
};

DocumentsCase make_case(int64_t heads, int64_t kv_heads, int64_t head_size, int64_t sequence,
                        int64_t batches, double tokens, int64_t window = 0) {
  return {{.heads = heads,
           .kv_heads = kv_heads,
           .head_size = head_size,
           .sequence = sequence,
           .scale = 1.0 / std::sqrt(static_cast<double>(head_size)),
           .documents = {.documents = true},
           .window = {window}},
          batches,
          tokens};
}

/// All tile sizes of heads and heads between them; grouped heads; documents of one token, shorter
/// and longer than the tiles of 64 queries and keys, and a whole sequence; windows inside them.
std::vector<DocumentsCase> awkward_cases() {
  return {make_case(2, 2, 64, 7, 3, 2),        make_case(4, 2, 64, 64, 2, 1),
          make_case(3, 1, 128, 65, 2, 9),      make_case(8, 2, 128, 127, 1, 1e9),
          make_case(4, 4, 96, 200, 2, 30),     make_case(6, 3, 80, 129, 1, 70),
          make_case(2, 1, 192, 150, 2, 40),    make_case(2, 2, 256, 140, 1, 50),
          make_case(1, 1, 40, 521, 1, 130),    make_case(12, 12, 64, 1024, 2, 200),
          make_case(4, 2, 64, 300, 2, 90, 20), make_case(2, 1, 128, 521, 1, 130, 70)};
}

// Inputs are in [-1, 1): out is a mean of such values, rounded to bf16 once, its weights twice.
TEST_F(AttentionDocumentsCudaTest, ForwardEqualsTheCpu) {
  for (const DocumentsCase& c : awkward_cases()) {
    KernelCase forward = c.forward();
    const KernelCase expected = f64_reference(forward);
    run_on_cuda(forward, context());
    expect_close(forward.values(2), expected.values(2), {.absolute = 4e-3, .relative = 8e-3},
                 c.name());
    expect_close(forward.values(3), expected.values(3), {.absolute = 2e-5, .relative = 2e-5},
                 c.name() + " lse");
  }
}

TEST_F(AttentionDocumentsCudaTest, BackwardEqualsTheCpu) {
  for (const DocumentsCase& c : awkward_cases()) {
    KernelCase backward = c.backward();
    const KernelCase expected = f64_reference(backward);
    EXPECT_EQ(static_cast<int64_t>(make_cuda_kernel(backward.spec(), context()).scratch_bytes),
              max_attention_scratch_bytes(backward.spec(), {}));
    run_on_cuda(backward, context());
    expect_close(backward.values(5), expected.values(5), {.absolute = 2e-2, .relative = 2e-2},
                 c.name());
    EXPECT_LT(relative_distance(backward.values(5), expected.values(5)), 6e-3) << c.name();
  }
}

// One kernel, captured once, for whatever documents a step has.
TEST_F(AttentionDocumentsCudaTest, GraphsAreRepeatableAndTakeOtherDocuments) {
  const DocumentsCase c = make_case(16, 4, 128, 2048, 2, 150);
  for (const auto& make : {std::function<KernelCase()>([&] { return c.forward(); }),
                           std::function<KernelCase()>([&] { return c.backward(); })}) {
    KernelCase first = make();
    const CudaKernel kernel = make_cuda_kernel(first.spec(), context());
    run_on_cuda(first, kernel);
    for (const CudaLaunch how : {CudaLaunch::kEager, CudaLaunch::kGraph}) {
      KernelCase again = make();
      run_on_cuda(again, kernel, how);
      for (size_t i = 0; i < first.spec().operands.size(); ++i) {
        EXPECT_TRUE(again.bytes(i) == first.bytes(i)) << first.spec().op << " operand " << i;
      }
    }
    KernelCase other = make();
    const size_t starts = first.spec().op == kAttentionOp.name ? 1 : 4;
    other.set(starts, random_starts(c.batches, c.a.sequence, 1000));
    run_on_cuda(other, kernel, CudaLaunch::kGraph);
    EXPECT_FALSE(other.bytes(starts + 1) == first.bytes(starts + 1));
  }
}

struct StepCase {
  AttentionStepAttributes a;
  TokenPositions query_positions;
  int64_t whole;  // positions of a sequence
  int64_t batches = 2;

  std::vector<double> starts() const {
    const std::vector<double> all = random_starts(batches, whole, 60);
    std::vector<double> own;
    for (int64_t row = 0; row < batches * a.sequence; ++row) {
      own.push_back(all[static_cast<size_t>(row / a.sequence * whole +
                                            query_positions.of(row % a.sequence))]);
    }
    return own;
  }
  Shape qkv() const { return {batches * a.sequence, (a.heads + 2 * a.kv_heads) * a.head_size}; }
  Shape kv() const { return {batches * a.kv_sequence, 2 * a.kv_heads * a.head_size}; }
  Shape out() const { return {batches * a.sequence, a.heads * a.head_size}; }
  Shape lse() const { return {batches, a.heads, a.sequence}; }

  KernelCase forward(bool accumulate) const {
    AttentionStepAttributes attributes = a;
    attributes.accumulate = accumulate;
    KernelCase kernel(
        {"attention_step",
         to_attributes(attributes),
         {read(DType::kBF16, qkv()), read(DType::kBF16, kv()), read(DType::kI32, {qkv()[0]}),
          gradient(accumulate, DType::kF32, out()), gradient(accumulate, DType::kF32, lse())}});
    kernel.set(2, starts());
    return kernel;
  }
  KernelCase backward(bool accumulate) const {
    KernelCase kernel(
        {"attention_step_backward",
         to_attributes(AttentionStepBackwardAttributes{
             .step = a, .accumulate_q = accumulate, .accumulate_kv = !accumulate}),
         {read(DType::kBF16, qkv()), read(DType::kBF16, kv()), read(DType::kBF16, out()),
          read(DType::kF32, lse()), read(DType::kBF16, out()), read(DType::kI32, {qkv()[0]}),
          gradient(accumulate, DType::kF32, out()), gradient(!accumulate, DType::kF32, kv())}});
    KernelCase of_forward = forward(false);
    of_forward.set(0, kernel.values(0));
    of_forward.set(1, kernel.values(1));
    const KernelCase reference = f64_reference(of_forward);
    std::vector<double> lse = reference.values(4);
    for (double& value : lse) {
      value = std::isfinite(value) ? value + std::log(2.0) : 0.0;  // as many keys in other steps
    }
    kernel.set(2, reference.values(3));
    kernel.set(3, lse);
    kernel.set(5, starts());
    return kernel;
  }
};

/// Steps of a ring of two ranks, of gathered keys, and over keys that begin inside.
std::vector<StepCase> step_cases() {
  constexpr int64_t kChunk = 70;
  const auto of_rank = [](int64_t rank) {
    return TokenPositions{
        .first_begin = rank * kChunk, .second_begin = (3 - rank) * kChunk, .split = kChunk};
  };
  const auto make = [](AttentionStepAttributes a, const TokenPositions& queries,
                       const TokenPositions& keys) {
    a.scale = 0.1;
    a.documents.documents = true;
    a.key_positions = keys;
    return StepCase{.a = a, .query_positions = queries, .whole = 4 * kChunk};
  };
  using A = AttentionStepAttributes;
  constexpr int64_t kLocal = 2 * kChunk;
  return {
      make(A{4, 2, 64, kLocal, kLocal, 0, 0, kLocal, 0, kLocal, true}, of_rank(1), of_rank(1)),
      make(A{4, 2, 64, kLocal, kLocal, 0, 0, kLocal, 0, kChunk, false}, of_rank(1), of_rank(0)),
      make(A{4, 1, 128, kLocal, kLocal, 0, kChunk, kChunk, 0, kLocal, false}, of_rank(0),
           of_rank(1)),
      make(A{4, 4, 96, kLocal, 2 * kLocal, 0, kChunk, kChunk, 0, 3 * kChunk, true}, of_rank(1), {}),
      make(A{2, 1, 64, kLocal, 2 * kLocal, 0, kChunk, kChunk, 65, 3 * kChunk - 65, true},
           of_rank(1), {})};
}

TEST_F(AttentionDocumentsCudaTest, StepsEqualTheCpu) {
  for (const StepCase& c : step_cases()) {
    for (const bool accumulate : {false, true}) {
      const std::string name =
          fmt::format("queries {}+{} keys {}+{}{}", c.a.query_begin, c.a.queries, c.a.key_begin,
                      c.a.keys, accumulate ? ", merged" : "");
      KernelCase step = c.forward(accumulate);
      const KernelCase expected = f64_reference(step);
      run_on_cuda(step, context());
      expect_close(step.values(3), expected.values(3), {.absolute = 4e-3, .relative = 8e-3}, name);
      const std::vector<double> lse = step.values(4);
      const std::vector<double> expected_lse = expected.values(4);
      for (size_t i = 0; i < lse.size(); ++i) {  // -infinity where a query sees no key
        ASSERT_TRUE(lse[i] == expected_lse[i] || std::abs(lse[i] - expected_lse[i]) < 2e-5)
            << name << " lse " << i << ": " << lse[i] << ", not " << expected_lse[i];
      }
      KernelCase backward = c.backward(accumulate);
      const KernelCase expected_gradients = f64_reference(backward);
      run_on_cuda(backward, context());
      for (const size_t operand : {size_t{6}, size_t{7}}) {
        expect_close(backward.values(operand), expected_gradients.values(operand),
                     {.absolute = 2e-2, .relative = 2e-2}, name);
        EXPECT_LT(relative_distance(backward.values(operand), expected_gradients.values(operand)),
                  7e-3)
            << name;
      }
    }
  }
}

}  // namespace
}  // namespace braid
