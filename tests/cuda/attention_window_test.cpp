#include "backends/cuda/kernels/attention.h"
#include "ops/attention.h"
#include "ops/attention_step.h"
#include "support/cuda_kernel_checks.h"

namespace braid {
namespace {

using AttentionWindowCudaTest = CudaKernelTest;

struct WindowCase {
  AttentionAttributes a;
  int64_t batches;

  KernelCase forward() const {
    const int64_t rows = batches * a.sequence;
    return KernelCase({"attention",
                       to_attributes(a),
                       {read(DType::kBF16, {rows, (a.heads + 2 * a.kv_heads) * a.head_size}),
                        write(DType::kBF16, {rows, a.heads * a.head_size}),
                        write(DType::kF32, {batches, a.heads, a.sequence})}});
  }
  /// With the out and lse that belong to its qkv, both from the CPU in f64.
  KernelCase backward() const {
    KernelCase of_forward = forward();
    const OpSpec& spec = of_forward.spec();
    const Shape& out = spec.operands[1].shape;
    KernelCase kernel(
        {"attention_backward",
         spec.attributes,
         {spec.operands[0], read(DType::kBF16, out), read(DType::kF32, spec.operands[2].shape),
          read(DType::kBF16, out), write(DType::kBF16, spec.operands[0].shape)}});
    of_forward.set(0, kernel.values(0));
    const KernelCase reference = f64_reference(of_forward);
    kernel.set(1, reference.values(1));
    kernel.set(2, reference.values(2));
    return kernel;
  }
  std::string name() const {
    return fmt::format("heads {}/{} x {}, sequence {}, window {}", a.heads, a.kv_heads, a.head_size,
                       a.sequence, a.window.window);
  }
};

WindowCase make_case(int64_t heads, int64_t kv_heads, int64_t head_size, int64_t sequence,
                     int64_t batches, int64_t window) {
  return {{.heads = heads,
           .kv_heads = kv_heads,
           .head_size = head_size,
           .sequence = sequence,
           .scale = 1.0 / std::sqrt(static_cast<double>(head_size)),
           .window = {window}},
          batches};
}

/// All tile sizes of heads; windows of one key, around the tiles of 64 keys and 32 queries, and
/// longer than the sequence.
std::vector<WindowCase> awkward_cases() {
  return {make_case(2, 2, 64, 7, 3, 3),      make_case(4, 2, 64, 130, 2, 1),
          make_case(3, 1, 128, 193, 2, 33),  make_case(8, 2, 128, 257, 1, 64),
          make_case(4, 4, 96, 200, 2, 63),   make_case(6, 3, 80, 300, 1, 65),
          make_case(2, 1, 192, 150, 2, 149), make_case(2, 2, 256, 140, 1, 90),
          make_case(1, 1, 40, 521, 1, 600),  make_case(8, 2, 128, 2048, 1, 500)};
}

// The tolerances of attention inside documents, which the same kernels compute.
TEST_F(AttentionWindowCudaTest, ForwardEqualsTheCpu) {
  for (const WindowCase& c : awkward_cases()) {
    KernelCase forward = c.forward();
    const KernelCase expected = f64_reference(forward);
    run_on_cuda(forward, context());
    expect_close(forward.values(1), expected.values(1), {.absolute = 4e-3, .relative = 8e-3},
                 c.name());
    expect_close(forward.values(2), expected.values(2), {.absolute = 2e-5, .relative = 2e-5},
                 c.name() + " lse");
  }
}

TEST_F(AttentionWindowCudaTest, BackwardEqualsTheCpu) {
  for (const WindowCase& c : awkward_cases()) {
    KernelCase backward = c.backward();
    const KernelCase expected = f64_reference(backward);
    EXPECT_EQ(static_cast<int64_t>(make_cuda_kernel(backward.spec(), context()).scratch_bytes),
              max_attention_scratch_bytes(backward.spec(), {}));
    run_on_cuda(backward, context());
    expect_close(backward.values(4), expected.values(4), {.absolute = 2e-2, .relative = 2e-2},
                 c.name());
    EXPECT_LT(relative_distance(backward.values(4), expected.values(4)), 6e-3) << c.name();
  }
}

TEST_F(AttentionWindowCudaTest, IsRepeatable) {
  const WindowCase c = make_case(16, 4, 128, 2048, 2, 700);
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
  }
}

struct StepCase {
  AttentionStepAttributes a;
  int64_t batches = 2;

  Shape qkv() const { return {batches * a.sequence, (a.heads + 2 * a.kv_heads) * a.head_size}; }
  Shape kv() const { return {batches * a.kv_sequence, 2 * a.kv_heads * a.head_size}; }
  Shape out() const { return {batches * a.sequence, a.heads * a.head_size}; }
  Shape lse() const { return {batches, a.heads, a.sequence}; }

  KernelCase forward(bool accumulate) const {
    AttentionStepAttributes attributes = a;
    attributes.accumulate = accumulate;
    return KernelCase(
        {"attention_step",
         to_attributes(attributes),
         {read(DType::kBF16, qkv()), read(DType::kBF16, kv()),
          gradient(accumulate, DType::kF32, out()), gradient(accumulate, DType::kF32, lse())}});
  }
  KernelCase backward(bool accumulate) const {
    KernelCase kernel(
        {"attention_step_backward",
         to_attributes(AttentionStepBackwardAttributes{
             .step = a, .accumulate_q = accumulate, .accumulate_kv = !accumulate}),
         {read(DType::kBF16, qkv()), read(DType::kBF16, kv()), read(DType::kBF16, out()),
          read(DType::kF32, lse()), read(DType::kBF16, out()),
          gradient(accumulate, DType::kF32, out()), gradient(!accumulate, DType::kF32, kv())}});
    KernelCase of_forward = forward(false);
    of_forward.set(0, kernel.values(0));
    of_forward.set(1, kernel.values(1));
    const KernelCase reference = f64_reference(of_forward);
    std::vector<double> lse = reference.values(3);
    for (double& value : lse) {
      value = std::isfinite(value) ? value + std::log(2.0) : 0.0;  // as many keys in other steps
    }
    kernel.set(2, reference.values(2));
    kernel.set(3, lse);
    return kernel;
  }
  std::string name() const {
    return fmt::format("queries {}+{} keys {}+{} window {}", a.query_begin, a.queries, a.key_begin,
                       a.keys, a.window.limit.window);
  }
};

/// Steps of a ring of two ranks, of gathered keys, over keys that begin inside, and of one query
/// that sees nothing.
std::vector<StepCase> step_cases() {
  constexpr int64_t kChunk = 70;
  constexpr int64_t kLocal = 2 * kChunk;
  const auto of_rank = [](int64_t rank) {
    return TokenPositions{
        .first_begin = rank * kChunk, .second_begin = (3 - rank) * kChunk, .split = kChunk};
  };
  std::vector<StepCase> cases;
  for (const int64_t window : {2, 40, 71, 150}) {
    const auto add = [&](AttentionStepAttributes a, const TokenPositions& queries,
                         const TokenPositions& keys) {
      a.scale = 0.1;
      a.key_positions = keys;
      a.window = {.limit = {window}, .query_positions = queries};
      cases.push_back({.a = a});
    };
    using A = AttentionStepAttributes;
    add(A{4, 2, 64, kLocal, kLocal, 0, 0, kLocal, 0, kLocal, true}, of_rank(1), of_rank(1));
    add(A{4, 2, 64, kLocal, kLocal, 0, 0, kLocal, 0, kChunk, false}, of_rank(1), of_rank(0));
    add(A{4, 1, 128, kLocal, kLocal, 0, kChunk, kChunk, 0, kLocal, false}, of_rank(0), of_rank(1));
    add(A{4, 4, 96, kLocal, 2 * kLocal, 0, kChunk, kChunk, 0, 3 * kChunk, true}, of_rank(1), {});
    add(A{2, 1, 64, kLocal, 2 * kLocal, 0, kChunk, kChunk, 65, 3 * kChunk - 65, true}, of_rank(1),
        {});
    add(A{2, 2, 64, kLocal, kLocal, 0, kLocal - 1, 1, 0, 1, false}, of_rank(0), of_rank(0));
  }
  return cases;
}

TEST_F(AttentionWindowCudaTest, StepsEqualTheCpu) {
  for (const StepCase& c : step_cases()) {
    for (const bool accumulate : {false, true}) {
      const std::string name = c.name() + (accumulate ? ", merged" : "");
      KernelCase step = c.forward(accumulate);
      const KernelCase expected = f64_reference(step);
      run_on_cuda(step, context());
      expect_close(step.values(2), expected.values(2), {.absolute = 4e-3, .relative = 8e-3}, name);
      const std::vector<double> lse = step.values(3);
      const std::vector<double> expected_lse = expected.values(3);
      for (size_t i = 0; i < lse.size(); ++i) {  // -infinity where a query sees no key
        ASSERT_TRUE(lse[i] == expected_lse[i] || std::abs(lse[i] - expected_lse[i]) < 2e-5)
            << name << " lse " << i << ": " << lse[i] << ", not " << expected_lse[i];
      }
      KernelCase backward = c.backward(accumulate);
      const KernelCase expected_gradients = f64_reference(backward);
      run_on_cuda(backward, context());
      for (const size_t operand : {size_t{5}, size_t{6}}) {
        expect_close(backward.values(operand), expected_gradients.values(operand),
                     {.absolute = 2e-2, .relative = 2e-2}, name);
        const std::vector<double> gradients = expected_gradients.values(operand);
        if (dot(gradients, gradients) > 0) {  // 0 where no query sees a key
          EXPECT_LT(relative_distance(backward.values(operand), gradients), 7e-3) << name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace braid
