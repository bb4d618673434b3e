#include "backends/cuda/device_needs.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "backends/cuda/kernels/attention_calls.h"
#include "backends/cuda/kernels/fused_kernels.h"
#include "backends/cuda/kernels/scratch_sizes.h"
#include "ir/text.h"
#include "ops/attention.h"
#include "ops/attention_step.h"
#include "ops/attributes.h"
#include "ops/grouped_linear.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/quantize.h"
#include "ops/scaled_grouped_linear.h"
#include "ops/scaled_linear.h"
#include "support/grouped_swiglu_cases.h"
#include "support/kernel_harness.h"
#include "support/linear_swiglu_cases.h"
#include "support/step_program.h"

namespace braid {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

struct AttentionShape {
  int64_t batches;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_size;
  int64_t sequence;
};

OpSpec attention_backward(AttentionShape s) {
  const int64_t rows = s.batches * s.sequence;
  const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_size;
  return {"attention_backward",
          to_attributes(AttentionAttributes{.heads = s.heads,
                                            .kv_heads = s.kv_heads,
                                            .head_size = s.head_size,
                                            .sequence = s.sequence}),
          {read(DType::kBF16, {rows, width}), read(DType::kBF16, {rows, s.heads * s.head_size}),
           read(DType::kF32, {s.batches, s.heads, s.sequence}),
           read(DType::kBF16, {rows, s.heads * s.head_size}), write(DType::kBF16, {rows, width})}};
}

// What an H200 took beside the planned bytes with cuDNN: 4.1 GiB of llama-1b and llama-8b, where
// d_scores of a call reach their limit; less than 1 GiB of 16 short sequences.
TEST(DeviceNeeds, AttentionByCudnnCountsTheScoresOfACall) {
  const auto bytes_of = [](AttentionShape shape, bool repeatable) {
    return max_attention_scratch_bytes(
        attention_backward(shape), {.repeatable = repeatable, .method = AttentionMethod::kCudnn});
  };
  for (const AttentionShape shape : {AttentionShape{2, 32, 8, 64, 8192},  //
                                     AttentionShape{1, 32, 8, 128, 8192}}) {
    EXPECT_GE(bytes_of(shape, true), 4 * kGiB);
    EXPECT_LE(bytes_of(shape, true), 5 * kGiB);
    EXPECT_LE(bytes_of(shape, false), kGiB);
  }
  const OpSpec many_short = attention_backward({16, 28, 4, 128, 1024});
  EXPECT_GE(max_cuda_scratch_bytes(many_short, true), 16 * 28 * 2 * kMiB);
  EXPECT_LE(max_cuda_scratch_bytes(many_short, true), 16 * 28 * 2 * kMiB + kGiB);
}

// d_query in fp32; where heads share keys, also d_key and d_value of every query head: 384 MiB and
// a little for llama-1b.
TEST(DeviceNeeds, AttentionOfOurOwnIsCountedExactly) {
  const AttentionSizes grouped(attention_backward({2, 32, 8, 64, 8192}));
  const int64_t rows = int64_t{2} * 32 * 8192;
  const Sm90Scratch scratch(grouped);
  EXPECT_EQ(scratch.size_bytes, rows * 4 * (3 * 64 + 2) + rows / 128 * 4);
  EXPECT_EQ(Sm90Scratch(AttentionSizes(attention_backward({2, 32, 32, 64, 8192}))).size_bytes,
            rows * 4 * (64 + 2) + rows / 128 * 4);
  const OpSpec spec = attention_backward({2, 32, 8, 64, 8192});
  EXPECT_EQ(max_attention_scratch_bytes(spec, {.method = AttentionMethod::kSm90}),
            scratch.size_bytes);
  if (has_attention_backward_sm90(grouped)) {
    EXPECT_EQ(static_cast<int64_t>(max_cuda_scratch_bytes(spec, true)), scratch.size_bytes);
  }
  const Sm90Scratch awkward(AttentionSizes(attention_backward({3, 6, 2, 128, 129})));
  EXPECT_EQ(awkward.query_rows, 192);
  EXPECT_EQ(awkward.key_rows, 256);
  EXPECT_GE(awkward.size_bytes, 18 * 4 * (192 * 130 + 2 * 256 * 128 + 3));
  EXPECT_EQ(awkward.semaphores_at % 256, 0);
}

// Grouped heads of short sequences are cuDNN's; so is every head size that we have no kernel for.
TEST(DeviceNeeds, TheMethodOfAttentionFollowsItsShape) {
  const auto method_of = [](AttentionShape shape) {
    return attention_backward_method(AttentionSizes(attention_backward(shape)));
  };
  EXPECT_EQ(method_of({2, 32, 8, 96, 8192}), AttentionMethod::kCudnn);
  EXPECT_EQ(method_of({16, 28, 4, 128, 1024}), AttentionMethod::kCudnn);
  const AttentionShape long_grouped{1, 32, 8, 128, 8192};
  const auto expected =
      has_attention_backward_sm90(AttentionSizes(attention_backward(long_grouped)))
          ? AttentionMethod::kSm90
          : AttentionMethod::kCudnn;
  EXPECT_EQ(method_of(long_grouped), expected);
  EXPECT_EQ(method_of({16, 12, 12, 64, 1024}), expected);
  EXPECT_EQ(method_of({2, 32, 8, 64, 8192}), expected);
  const auto forward_method_of = [](AttentionShape shape) {
    return attention_method(AttentionSizes(attention_backward(shape)));
  };
  EXPECT_EQ(forward_method_of(long_grouped), expected);
  EXPECT_EQ(forward_method_of({16, 12, 12, 64, 1024}), AttentionMethod::kCudnn);
}

/// Of a rank that holds `sequence` rows: these queries see the first `keys` rows of as many.
OpSpec attention_step(AttentionShape s, int64_t queries, int64_t keys, bool is_backward) {
  const int64_t rows = s.batches * s.sequence;
  const Shape qkv{rows, (s.heads + 2 * s.kv_heads) * s.head_size};
  const Shape kv{rows, 2 * s.kv_heads * s.head_size};
  const Shape out{rows, s.heads * s.head_size};
  const Shape lse{s.batches, s.heads, s.sequence};
  const AttentionStepAttributes step{.heads = s.heads,
                                     .kv_heads = s.kv_heads,
                                     .head_size = s.head_size,
                                     .sequence = s.sequence,
                                     .kv_sequence = s.sequence,
                                     .queries = queries,
                                     .keys = keys};
  OpSpec spec{"attention_step", to_attributes(step), {read(DType::kBF16, qkv)}};
  spec.operands.push_back(read(DType::kBF16, kv));
  if (!is_backward) {
    spec.operands.push_back(write(DType::kF32, out));
    spec.operands.push_back(write(DType::kF32, lse));
    return spec;
  }
  spec.op = "attention_step_backward";
  spec.attributes = to_attributes(AttentionStepBackwardAttributes{.step = step});
  for (const OperandSpec& operand :
       {read(DType::kBF16, out), read(DType::kF32, lse), read(DType::kBF16, out),
        write(DType::kF32, out), write(DType::kF32, kv)}) {
    spec.operands.push_back(operand);
  }
  return spec;
}

// Beside what cuDNN takes for so many queries and keys: out and lse of the step, or lse, d_q and
// d_kv, in bf16.
TEST(DeviceNeeds, StepsOfAttentionCountWhatIsMergedBehindThem) {
  const AttentionShape shape{1, 32, 8, 128, 8192};
  const int64_t out_bytes = int64_t{4096} * 4096 * 2;
  const int64_t lse_bytes = int64_t{32} * 4096 * 4;
  const OpSpec forward = attention_step(shape, 4096, 8192, false);
  check_spec(forward);
  EXPECT_EQ(max_cuda_scratch_bytes(forward, true),
            static_cast<size_t>(16 * kMiB + out_bytes + lse_bytes));
  const OpSpec backward = attention_step(shape, 4096, 8192, true);
  check_spec(backward);
  const int64_t own_bytes = out_bytes + lse_bytes + int64_t{8192} * 2048 * 2;
  const int64_t d_scores_bytes = int64_t{32} * 4096 * 8192 * 2;  // of all heads
  const auto bytes = static_cast<int64_t>(max_cuda_scratch_bytes(backward, true));
  EXPECT_GE(bytes, own_bytes + d_scores_bytes);
  EXPECT_LE(bytes, own_bytes + d_scores_bytes + kGiB);
  EXPECT_LE(max_cuda_scratch_bytes(backward, false), 1.0 * kGiB);
}

// The kernels of documents need a number per query and head in the backward, and nothing else.
TEST(DeviceNeeds, WindowsTakeTheKernelsOfDocuments) {
  const AttentionShape shape{1, 32, 8, 128, 8192};
  const size_t means_bytes = size_t{32} * 8192 * 4;
  OpSpec whole = attention_backward(shape);
  auto attributes = attributes_of<AttentionAttributes>(whole);
  attributes.window.window = 100;
  whole.attributes = to_attributes(attributes);
  EXPECT_EQ(attention_backward_method(AttentionSizes(whole)), AttentionMethod::kDocuments);
  EXPECT_EQ(attention_method(AttentionSizes(whole)), AttentionMethod::kDocuments);
  EXPECT_EQ(max_cuda_scratch_bytes(whole, true), means_bytes);
  OpSpec step = attention_step(shape, 8192, 8192, true);
  auto of_step = attributes_of<AttentionStepBackwardAttributes>(step);
  of_step.step.window.limit.window = 100;
  step.attributes = to_attributes(of_step);
  check_spec(step);
  EXPECT_EQ(max_cuda_scratch_bytes(step, true), means_bytes);
}

TEST(DeviceNeeds, PartsOfAStepDoNotOverlap) {
  const AttentionSizes sizes(attention_step({3, 4, 2, 24, 10}, 5, 7, true));
  const AttentionStepParts parts(sizes, true);
  EXPECT_EQ(parts.lse, 0);
  EXPECT_GE(parts.query_rows, parts.lse + 3 * 4 * 5 * 4);
  EXPECT_GE(parts.kv_rows, parts.query_rows + 3 * 5 * 96 * 2);
  EXPECT_GE(parts.rest, parts.kv_rows + 3 * 7 * 96 * 2);
  for (const int64_t begin : {parts.query_rows, parts.kv_rows, parts.rest}) {
    EXPECT_EQ(begin % 256, 0);
  }
  EXPECT_EQ(AttentionStepParts(sizes, false).rest, parts.kv_rows);
}

TEST(DeviceNeeds, CallsHaveWholeSequencesOrHeadsOfOne) {
  const AttentionSizes sizes(attention_backward({6, 8, 2, 64, 1024}));
  const auto call = [&](int64_t max_bytes) {
    return attention_backward_call(sizes, {.max_d_scores_bytes = max_bytes});
  };
  const int64_t kv_head_bytes = int64_t{4} * 1024 * 1024 * 2;  // 4 query heads
  EXPECT_EQ(call(12 * kv_head_bytes).batches, 6);
  EXPECT_EQ(call(11 * kv_head_bytes).batches, 3);
  EXPECT_EQ(call(3 * kv_head_bytes).batches, 1);
  EXPECT_EQ(call(3 * kv_head_bytes).kv_heads, 2);
  EXPECT_EQ(call(1).kv_heads, 1);
  EXPECT_EQ(attention_backward_call(sizes, {.repeatable = false}).batches, 6);
}

TEST(DeviceNeeds, OwnKernelsAreCountedExactly) {
  const OpSpec norm{"layernorm_backward",
                    to_attributes(NormBackwardAttributes{}),
                    {read(DType::kBF16, {5000, 1024})}};
  EXPECT_EQ(max_cuda_scratch_bytes(norm, true),
            2 * NormBackwardGrid(5000, 128).partial_bytes(1024));
  const OpSpec product{"linear", to_attributes(LinearAttributes{}), {}};
  EXPECT_EQ(max_cuda_scratch_bytes(product, true), kMaxGemmScratchBytes);
  // d_h [1000, 301] in bf16 is 602000 bytes, and what follows it begins at a multiple of 256.
  const OpSpec with_activation{"linear_dgrad_swiglu_backward",
                               {},
                               {read(DType::kBF16, {1000, 64}), read(DType::kBF16, {64, 301})}};
  EXPECT_EQ(max_cuda_scratch_bytes(with_activation, true), kMaxGemmScratchBytes + 602112);
  // What one kernel does has no d_h in memory.
  const OpSpec whole_vectors =
      linear_dgrad_swiglu_backward_spec(DType::kBF16, {.rows = 1000, .depth = 64, .ffn = 304});
  EXPECT_EQ(max_cuda_scratch_bytes(whole_vectors, true),
            kMaxGemmScratchBytes + (has_fused_kernels(whole_vectors) ? 0 : 608000));
  EXPECT_FALSE(has_fused_kernels(
      linear_dgrad_swiglu_backward_spec(DType::kF32, {.rows = 1000, .depth = 64, .ffn = 304})));
  // One kernel: 300 rows of parts from 3 blocks of columns, 3600 bytes. Two: d_h of 304 columns.
  const OpSpec grouped =
      grouped_dgrad_swiglu_backward_case(DType::kBF16, {{100, 200}, 64, 304}).spec();
  EXPECT_EQ(max_cuda_scratch_bytes(grouped, true),
            kGroupedScratchBytes + (has_fused_kernels(grouped) ? 3840 : 182528));
  const OpSpec of_f32 = grouped_dgrad_swiglu_backward_case(DType::kF32, {{3}, 8, 8}).spec();
  EXPECT_FALSE(has_fused_kernels(of_f32));
  EXPECT_EQ(max_cuda_scratch_bytes(of_f32, true), kGroupedScratchBytes + 256);
  const OpSpec copy{"copy", {}, {}};
  EXPECT_EQ(max_cuda_scratch_bytes(copy, true), 0u);
}

TEST(DeviceNeeds, QuantizationNeedsPlaceForMagnitudesAndSums) {
  const auto bytes = [](int64_t block, bool has_bias) {
    const QuantizeAttributes attributes{.block = block, .has_bias = has_bias};
    return max_cuda_scratch_bytes(
        {"quantize", to_attributes(attributes), {read(DType::kBF16, {300, 70})}}, true);
  };
  EXPECT_EQ(bytes(128, false), 0u);
  EXPECT_EQ(bytes(128, true), 3u * 70 * sizeof(float));
  EXPECT_EQ(bytes(0, false), 1024u);
  EXPECT_EQ(bytes(0, true), 1024u + 3 * 70 * sizeof(float));
}

// Where cuBLASLt does not multiply FP8 elements, both factors are in scratch as bf16.
TEST(DeviceNeeds, ProductsOfFp8CountFactorsThatAreWidened) {
  const auto bytes = [](int64_t block, int64_t rows, int64_t depth) {
    const DType e4m3 = DType::kF8E4M3;
    const ScaledLinearAttributes attributes{.block = block};
    return max_cuda_scratch_bytes({"scaled_linear",
                                   to_attributes(attributes),
                                   {read(e4m3, {rows, depth}), read(DType::kF32, {1}),
                                    read(e4m3, {64, depth}), read(DType::kF32, {1})}},
                                  true) -
           kMaxGemmScratchBytes;
  };
  EXPECT_EQ(bytes(128, 1000, 256), 0u);
  EXPECT_EQ(bytes(0, 1000, 256), 0u);
  EXPECT_EQ(bytes(32, 1000, 256), (1000u + 64) * 256 * 2);
  EXPECT_EQ(bytes(128, 1001, 256), (1001u + 64) * 256 * 2);
  // 1000 rows of 300 in bf16 are 600000 bytes, 64 are 38400; each begins at a multiple of 256.
  EXPECT_EQ(bytes(128, 1000, 300), 600064u + 38400);
}

// 3 experts with 256 features of depth 128 each, and 100 rows of all.
// Hopper multiplies e4m3 factors whose rows are multiples of 4 as they are.
TEST(DeviceNeeds, ProductsOfFp8ExpertsCountFactorsThatAreWidened) {
  const OperandSpec scales = read(DType::kF32, {1});
  const OperandSpec offsets = read(DType::kI32, {4});
  const auto bytes = [&](const char* op, std::vector<Attribute> attributes, const Shape& a,
                         const OperandSpec& b, const OperandSpec& result) {
    return max_cuda_scratch_bytes(
        {op, std::move(attributes), {read(DType::kF8E4M3, a), scales, b, scales, offsets, result}},
        true);
  };
  const OperandSpec w = read(DType::kF8E4M3, {768, 128});
  EXPECT_EQ(bytes("scaled_grouped_linear", {}, {102, 128}, w, write(DType::kBF16, {102, 256})),
            (102u + 768) * 128 * 2 + kGroupedScratchBytes);
  EXPECT_EQ(bytes("scaled_grouped_linear", {}, {100, 128}, w, write(DType::kBF16, {100, 256})), 0);
  const OperandSpec transposed = read(DType::kF8E4M3, {128, 768});
  EXPECT_EQ(bytes("scaled_grouped_linear_dgrad", {}, {102, 256}, transposed,
                  write(DType::kBF16, {102, 128})),
            (102u * 256 + 768 * 128) * 2 + kGroupedScratchBytes);
  const std::vector<Attribute> wgrad = to_attributes(ScaledGroupedWgradAttributes{.rows = 102});
  const OperandSpec dw = read_write(DType::kF32, {768, 128});
  EXPECT_EQ(
      bytes("scaled_grouped_linear_wgrad", wgrad, {128, 384}, read(DType::kF8E5M2, {256, 384}), dw),
      102u * (128 + 256) * 2 + kGroupedScratchBytes);
  EXPECT_EQ(
      bytes("scaled_grouped_linear_wgrad", wgrad, {128, 384}, read(DType::kF8E4M3, {256, 384}), dw),
      0);
}

// Kernels write fp32, and another one adds that to bf16 gradients.
TEST(DeviceNeeds, Bf16GradientsOfExpertsCountAnFp32Result) {
  const auto bytes = [](DType grads) {
    return max_cuda_scratch_bytes({"grouped_linear_wgrad",
                                   to_attributes(GroupedWgradAttributes{}),
                                   {read(DType::kBF16, {100, 128}), read(DType::kBF16, {100, 256}),
                                    read(DType::kI32, {4}), read_write(grads, {768, 128})}},
                                  true);
  };
  EXPECT_EQ(bytes(DType::kF32), kGroupedScratchBytes);
  EXPECT_EQ(bytes(DType::kBF16), kGroupedScratchBytes + 768u * 128 * 4);
  const auto fp8_bytes = [](int64_t rows, DType dy) {
    const OperandSpec scales = read(DType::kF32, {1});
    return max_cuda_scratch_bytes(
        {"scaled_grouped_linear_wgrad",
         to_attributes(ScaledGroupedWgradAttributes{.rows = rows}),
         {read(DType::kF8E4M3, {128, 384}), scales, read(dy, {256, 384}), scales,
          read(DType::kI32, {4}), read_write(DType::kBF16, {768, 128})}},
        true);
  };
  EXPECT_EQ(fp8_bytes(102, DType::kF8E4M3), 768u * 128 * 4);
  EXPECT_EQ(fp8_bytes(102, DType::kF8E5M2),
            102u * (128 + 256) * 2 + 768u * 128 * 4 + kGroupedScratchBytes);
}

TEST(DeviceNeeds, BiasSumsFillTheDeviceAndStayWithinTheirScratch) {
  for (const int64_t rows : {1, 31, 33, 1000, 100000}) {
    for (const int64_t columns : {1, 255, 257, 4096, 1000000}) {
      const int64_t chunks = bias_grad_chunks(rows, columns);
      EXPECT_GE(chunks, 1);
      EXPECT_LE(chunks, (rows + 31) / 32);
      EXPECT_EQ(bias_grad_scratch_bytes(rows, columns), static_cast<size_t>(4 * chunks * columns));
      EXPECT_LE(bias_grad_scratch_bytes(rows, columns), 4.0 * (1056 * 256 + columns));
    }
  }
}

Program fills(int count) {
  StepProgram builder;
  const StreamId compute = builder.stream("compute");
  const BufferId a = builder.persistent("a", 4);
  for (int i = 0; i < count; ++i) {
    builder.fill(compute, a, i);
  }
  return builder.finish();
}

TEST(DeviceNeeds, DriverBytesGrowWithTheTasks) {
  const std::array<Program, 1> few = {fills(10)};
  const std::array<Program, 2> many = {fills(10), fills(1000)};
  EXPECT_EQ(cuda_needs(few, true).scratch_bytes, 0);
  EXPECT_GT(cuda_needs(many, true).driver_bytes, cuda_needs(few, true).driver_bytes);
  // With the context: 0.5 to 0.6 GiB of a step of some hundred tasks on an H200.
  const int64_t all = kCudaContextBytes + cuda_needs(many, true).driver_bytes;
  EXPECT_GE(all, kGiB / 2);
  EXPECT_LE(all, 3 * kGiB / 4);
}

TEST(DeviceNeeds, CopyEnginesNeedFlagsAndNodesPerRank) {
  const auto needs = [](const std::string& ranks, const std::string& engine) {
    const Program program = parse_program(
        "program step rank=0 ranks=8 events=0\n"
        "stream comm kind=comm priority=1\n"
        "group data kind=data ranks=" +
        ranks +
        "\nbuffer x f32 [8] param persistent device\n"
        "buffer y f32 [8] gathered persistent device\n"
        "all_to_all(x -> y) {group=0" +
        engine + "} comm comm\n");
    return cuda_needs({&program, 1}, true).driver_bytes;
  };
  const std::string copy = ", engine=\"copy\"";
  EXPECT_EQ(needs("0,1", ""), needs("0,1,2,3", ""));
  EXPECT_GT(needs("0,1", copy), needs("0,1", ""));
  EXPECT_GT(needs("0,1,2,3", copy), needs("0,1", copy));
}

// Collectives of a group share a communicator, messages have one per direction.
TEST(DeviceNeeds, NcclTakesBuffersPerCommunicatorAndMember) {
  const auto of = [](const std::string& ranks, const std::string& task) {
    return nccl_needs(
        std::array{parse_program("program step rank=0 ranks=16 events=0\n"
                                 "stream comm kind=comm priority=1\n"
                                 "group data kind=data ranks=" +
                                 ranks +
                                 "\nbuffer x f32 [16] param persistent device\n"
                                 "buffer y f32 [16] gathered persistent device\n" +
                                 task)});
  };
  const auto bytes = [&](const std::string& ranks, const std::string& task) {
    return of(ranks, task).at(0).bytes;
  };
  const std::string sum = "all_reduce(x) {group=0} comm comm\n";
  const std::string exchange = "all_to_all(x -> y) {group=0} comm comm\n";
  const std::string send = "send(x) {group=0, peer=1, channel=0} comm comm\n";
  const std::string recv = "recv(y) {group=0, peer=1, channel=1} comm comm\n";
  EXPECT_TRUE(of("0", sum).empty());
  EXPECT_EQ(of("0,1", sum + sum).size(), 1u);
  EXPECT_EQ(of("0,1", sum + send + recv).size(), 3u);
  // By the driver, H200: 0.57 GiB each of three communicators of two, 1.17 GiB each of four.
  EXPECT_NEAR(static_cast<double>(bytes("0,1", sum)), 0.57 * kGiB, 0.05 * kGiB);
  EXPECT_NEAR(static_cast<double>(bytes("0,1,2,3", sum)), 1.17 * kGiB, 0.05 * kGiB);
  EXPECT_EQ(bytes("0,1,2,3,4,5,6,7", sum), bytes("0,1,2,3", sum));
  EXPECT_GT(bytes("0,1,2,3,4,5,6,7", exchange), 2 * bytes("0,1,2,3,4,5,6,7", sum));
  // Between hosts of 8, connections share a pool.
  const std::string sixteen = "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15";
  EXPECT_EQ(bytes(sixteen, exchange), bytes("0,1,2,3,4,5,6,7", exchange) + 512 * kMiB);
  EXPECT_EQ(bytes("0,1,2,3", send), bytes("0,1", send));
  EXPECT_TRUE(of("0,1", "all_to_all(x -> y) {group=0, engine=\"copy\"} comm comm\n").empty());
}

}  // namespace
}  // namespace braid
