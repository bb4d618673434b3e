// Matrix products and attention as a training step runs them: the kernels of the ops, captured into
// a CUDA graph, on random data in several sets of operands; median of the replays and their spread.
// Prints Markdown tables.
//
//   braid_bench_gemm_attention [CACHE_FOLDER]
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/algorithm_cache.h"
#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/device_needs.h"
#include "backends/cuda/kernel.h"
#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/bias_grad.h"
#include "backends/cuda/kernels/gemm_plan.h"
#include "backends/cuda/kernels/linear_swiglu.h"
#include "backends/cuda/kernels/random_fill.h"
#include "base/errors.h"
#include "ops/attention.h"
#include "ops/attributes.h"
#include "ops/linear.h"
#include "ops/linear_swiglu.h"
#include "ops/op.h"

namespace braid {
namespace {

constexpr int kReplays = 9;
constexpr double kReplayNs = 20e6;
constexpr size_t kColdBytes = size_t{256} << 20;
constexpr double kCopyBytesPerNs = 4300;  // measured: a device-to-device copy, read and written

struct Free {
  void operator()(std::byte* data) const { ignore_error(cudaFree(data)); }
};
using DeviceBytes = std::unique_ptr<std::byte, Free>;

DeviceBytes allocate(size_t bytes) {
  void* data = nullptr;
  BRAID_CUDA_CHECK(cudaMalloc(&data, std::max<size_t>(bytes, 256)));
  return DeviceBytes(static_cast<std::byte*>(data));
}

OperandSpec operand(DType dtype, Access access, Shape shape) {
  return {.dtype = dtype, .access = access, .shape = shape};
}

/// Sets of operands of one spec with random content, integers excepted: the caller fills those.
class OperandSets {
 public:
  explicit OperandSets(const OpSpec& spec, cudaStream_t stream) {
    size_t set_bytes = 0;
    for (const OperandSpec& each : spec.operands) {
      set_bytes += static_cast<size_t>(each.shape.num_elems()) * dtype_bytes(each.dtype);
    }
    const size_t count = std::clamp<size_t>(kColdBytes / set_bytes, 1, 8);
    for (size_t set = 0; set < count; ++set) {
      sets_.emplace_back();
      for (const OperandSpec& each : spec.operands) {
        memory_.push_back(
            allocate(static_cast<size_t>(each.shape.num_elems()) * dtype_bytes(each.dtype)));
        sets_.back().push_back(memory_.back().get());
        if (each.dtype != DType::kI32) {
          random_fill(memory_.back().get(), each.shape.num_elems(), each.dtype,
                      static_cast<uint32_t>(memory_.size()), stream);
        }
      }
    }
  }
  size_t size() const { return sets_.size(); }
  std::span<std::byte* const> operator[](size_t set) const { return sets_[set]; }

 private:
  std::vector<DeviceBytes> memory_;
  std::vector<std::vector<std::byte*>> sets_;
};

struct Timing {
  double ns = 0;      ///< median of one launch
  double spread = 0;  ///< (slowest - fastest) / median
};

class Bench {
 public:
  explicit Bench(std::string cache_folder) : context_(0, std::move(cache_folder)) {
    BRAID_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    BRAID_CUDA_CHECK(cudaEventCreate(&begin_));
    BRAID_CUDA_CHECK(cudaEventCreate(&end_));
  }
  CudaContext& context() { return context_; }
  cudaStream_t stream() const { return stream_; }

  /// `launch(i)` is the i-th launch.
  using Launch = std::function<void(int)>;

  /// Replays of the contestants take turns, so that a drop of the clock meets all alike.
  std::vector<Timing> time_in_turns(const std::vector<Launch>& contestants) {
    std::vector<Replay> replays;
    for (const Launch& launch : contestants) {
      replays.push_back(capture(launch));
    }
    std::vector<std::vector<double>> times(contestants.size());
    for (int round = 0; round < kReplays; ++round) {
      for (size_t i = 0; i < replays.size(); ++i) {
        times[i].push_back(replay_ns(replays[i]));
      }
    }
    std::vector<Timing> timings;
    for (size_t i = 0; i < replays.size(); ++i) {
      BRAID_CUDA_CHECK(cudaGraphExecDestroy(replays[i].graph));
      std::sort(times[i].begin(), times[i].end());
      const double median = times[i][times[i].size() / 2];
      timings.push_back({.ns = median, .spread = (times[i].back() - times[i].front()) / median});
    }
    return timings;
  }
  Timing time(const Launch& launch) { return time_in_turns({launch}).front(); }

  Timing time(const CudaKernel& kernel, const OperandSets& sets) {
    const DeviceBytes scratch = allocate(kernel.scratch_bytes);
    return time([&](int i) {
      kernel.launch({.operands = sets[static_cast<size_t>(i) % sets.size()],
                     .scratch = scratch.get(),
                     .stream = stream_});
    });
  }

 private:
  struct Replay {
    cudaGraphExec_t graph = nullptr;
    int launches = 0;
  };

  Replay capture(const Launch& launch) {
    launch(0);
    BRAID_CUDA_CHECK(cudaEventRecord(begin_, stream_));
    launch(1);
    const double once_ns = elapsed_ns();
    Replay replay{.launches = static_cast<int>(std::clamp(kReplayNs / once_ns, 2.0, 400.0))};
    cudaGraph_t graph = nullptr;
    BRAID_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < replay.launches; ++i) {
      launch(i);
    }
    BRAID_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    BRAID_CUDA_CHECK(cudaGraphInstantiate(&replay.graph, graph, 0));
    BRAID_CUDA_CHECK(cudaGraphDestroy(graph));
    replay_ns(replay);
    return replay;
  }

  double replay_ns(const Replay& replay) {
    BRAID_CUDA_CHECK(cudaEventRecord(begin_, stream_));
    BRAID_CUDA_CHECK(cudaGraphLaunch(replay.graph, stream_));
    return elapsed_ns() / replay.launches;
  }

  double elapsed_ns() {
    BRAID_CUDA_CHECK(cudaEventRecord(end_, stream_));
    BRAID_CUDA_CHECK(cudaEventSynchronize(end_));
    float ms = 0;
    BRAID_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return static_cast<double>(ms) * 1e6;
  }

  CudaContext context_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// ---- matrix products

struct Product {
  OpSpec spec;
  GemmProblem problem;  ///< the same for cuBLASLt's heuristic alone
  std::string name;
};

Product forward_product(int64_t rows, int64_t out, int64_t in, bool has_bias) {
  std::vector<OperandSpec> operands = {operand(DType::kBF16, Access::kRead, {rows, in}),
                                       operand(DType::kBF16, Access::kRead, {out, in})};
  if (has_bias) {
    operands.push_back(operand(DType::kBF16, Access::kRead, {out}));
  }
  operands.push_back(operand(DType::kBF16, Access::kWrite, {rows, out}));
  return {.spec = {"linear", to_attributes(LinearAttributes{.has_bias = has_bias}), operands},
          .problem = {.transpose_a = true, .m = out, .n = rows, .k = in, .has_bias = has_bias},
          .name = fmt::format("linear{} {}x{}x{}", has_bias ? " + bias" : "", rows, out, in)};
}

Product dgrad_product(int64_t rows, int64_t out, int64_t in) {
  return {.spec = {"linear_dgrad",
                   to_attributes(LinearDgradAttributes{}),
                   {operand(DType::kBF16, Access::kRead, {rows, out}),
                    operand(DType::kBF16, Access::kRead, {out, in}),
                    operand(DType::kBF16, Access::kWrite, {rows, in})}},
          .problem = {.m = in, .n = rows, .k = out},
          .name = fmt::format("dgrad {}x{}x{}", rows, out, in)};
}

Product wgrad_product(int64_t rows, int64_t out, int64_t in) {
  return {.spec = {"linear_wgrad",
                   to_attributes(LinearWgradAttributes{}),
                   {operand(DType::kBF16, Access::kRead, {rows, in}),
                    operand(DType::kBF16, Access::kRead, {rows, out}),
                    operand(DType::kF32, Access::kReadWrite, {out, in})}},
          .problem = {.transpose_b = true,
                      .m = in,
                      .n = out,
                      .k = rows,
                      .output = DType::kF32,
                      .accumulate = true},
          .name = fmt::format("wgrad, fp32 += {}x{}x{}", out, in, rows)};
}

std::vector<Product> products() {
  return {forward_product(8192, 8192, 8192, false),
          forward_product(8192, 12288, 4096, false),
          forward_product(8192, 4096, 14336, false),
          forward_product(8192, 28672, 4096, false),
          forward_product(4096, 4096, 4096, false),
          forward_product(8192, 2560, 4096, false),
          forward_product(8192, 4608, 3584, true),
          forward_product(16384, 3072, 2048, false),
          forward_product(16384, 16384, 2048, false),
          forward_product(4096, 128256, 2048, false),
          dgrad_product(8192, 28672, 4096),
          dgrad_product(8192, 4096, 14336),
          dgrad_product(16384, 16384, 2048),
          dgrad_product(4096, 128256, 2048),
          wgrad_product(8192, 4096, 4096),
          wgrad_product(8192, 14336, 4096),
          wgrad_product(8192, 6144, 4096),
          wgrad_product(8192, 28672, 4096),
          wgrad_product(16384, 16384, 2048),
          wgrad_product(4096, 128256, 2048)};
}

/// Launches of the heuristic's first suggestion on the same operands. What it holds must outlive
/// the call.
class FirstSuggestion {
 public:
  FirstSuggestion(Bench& bench, const Product& product)
      : bench_(bench),
        product_(product),
        plan_(product.problem),
        first_(plan_.candidates(bench.context().cublas_lt()).front()),
        scratch_(allocate(first_.scratch_bytes)) {}

  void launch(std::span<std::byte* const> operands) const {
    const bool is_wgrad = product_.spec.op == "linear_wgrad";
    plan_.launch(bench_.context().cublas_lt(), first_,
                 {.a = operands[is_wgrad ? 0 : 1],
                  .b = operands[is_wgrad ? 1 : 0],
                  .bias = product_.problem.has_bias ? operands[2] : nullptr,
                  .d = operands.back(),
                  .scratch = scratch_.get(),
                  .stream = bench_.stream()});
  }

 private:
  Bench& bench_;
  const Product& product_;
  GemmPlan plan_;
  GemmAlgorithm first_;
  DeviceBytes scratch_;
};

void run_product(Bench& bench, const Product& product) {
  CudaKernel kernel;
  const double choosing_s =
      seconds_of([&] { kernel = make_cuda_kernel(product.spec, bench.context()); });
  const OperandSets sets(product.spec, bench.stream());
  const DeviceBytes scratch = allocate(kernel.scratch_bytes);
  const FirstSuggestion first(bench, product);
  const auto set = [&](int i) { return sets[static_cast<size_t>(i) % sets.size()]; };
  const std::vector<Timing> timings = bench.time_in_turns(
      {[&](int i) {
         kernel.launch({.operands = set(i), .scratch = scratch.get(), .stream = bench.stream()});
       },
       [&](int i) { first.launch(set(i)); }});
  const double flops = spec_cost(product.spec).flops;
  const double tflops = flops / timings[0].ns / 1e3;
  fmt::print("| {} | {:.1f} | {:.0f} | {:.0f} | {:.1f}% | {:.2f} |\n", product.name,
             timings[0].ns / 1e3, tflops, flops / timings[1].ns / 1e3, 100 * timings[0].spread,
             choosing_s);
}

void run_products(Bench& bench) {
  fmt::print("| product | us | TFLOP/s | first suggestion | spread | chosen in s |\n");
  fmt::print("| --- | --- | --- | --- | --- | --- |\n");
  for (const Product& product : products()) {
    run_product(bench, product);
  }
}

// ---- products with SwiGLU in their epilogue

struct FusedShape {
  int64_t rows;
  int64_t width;
  int64_t ffn;
};

OpSpec fused_spec(const FusedShape& s, bool is_forward) {
  const auto bf16 = [](Access access, Shape shape) { return operand(DType::kBF16, access, shape); };
  const Shape gate_up{s.rows, 2 * s.ffn};
  if (is_forward) {
    return {"linear_swiglu",
            {},
            {bf16(Access::kRead, {s.rows, s.width}), bf16(Access::kRead, {2 * s.ffn, s.width}),
             bf16(Access::kWrite, gate_up), bf16(Access::kWrite, {s.rows, s.ffn})}};
  }
  return {"linear_dgrad_swiglu_backward",
          {},
          {bf16(Access::kRead, {s.rows, s.width}), bf16(Access::kRead, {s.width, s.ffn}),
           bf16(Access::kRead, gate_up), bf16(Access::kWrite, gate_up)}};
}

/// The product, and the activation after it.
class TwoKernels {
 public:
  TwoKernels(Bench& bench, const OpSpec& fused)
      : stream_(bench.stream()),
        is_forward_(fused.op == kLinearSwigluOp.name),
        product_(make_cuda_kernel(unfused(fused).product, bench.context())),
        activation_(make_cuda_kernel(unfused(fused).activation, bench.context())),
        scratch_(allocate(std::max(product_.scratch_bytes, activation_.scratch_bytes))),
        d_h_(allocate(static_cast<size_t>(unfused(fused).product.operands[2].shape.num_elems()) *
                      dtype_bytes(DType::kBF16))) {}

  void launch_product(std::span<std::byte* const> operands) const {
    const std::array args{operands[0], operands[1], is_forward_ ? operands[2] : d_h_.get()};
    product_.launch({.operands = args, .scratch = scratch_.get(), .stream = stream_});
  }
  void launch_both(std::span<std::byte* const> operands) const {
    launch_product(operands);
    std::vector<std::byte*> args{operands[2], operands[3]};
    if (!is_forward_) {
      args.insert(args.begin() + 1, d_h_.get());
    }
    activation_.launch({.operands = args, .scratch = scratch_.get(), .stream = stream_});
  }

 private:
  cudaStream_t stream_;
  bool is_forward_;
  CudaKernel product_;
  CudaKernel activation_;
  DeviceBytes scratch_;
  DeviceBytes d_h_;
};

void run_fused_product(Bench& bench, const FusedShape& shape, bool is_forward) {
  const OpSpec spec = fused_spec(shape, is_forward);
  const OperandSets sets(spec, bench.stream());
  const auto set = [&](int i) { return sets[static_cast<size_t>(i) % sets.size()]; };
  const TwoKernels two(bench, spec);
  CudaKernel chosen;
  const double choosing_s = seconds_of([&] { chosen = make_cuda_kernel(spec, bench.context()); });
  const DeviceBytes scratch = allocate(max_cuda_scratch_bytes(spec, /*repeatable=*/true));
  std::vector<Bench::Launch> contestants = {
      [&](int i) { two.launch_product(set(i)); }, [&](int i) { two.launch_both(set(i)); },
      [&](int i) {
        chosen.launch({.operands = set(i), .scratch = scratch.get(), .stream = bench.stream()});
      }};
  const std::vector<std::string> names = fused_kernel_names(spec);
  for (const std::string& name : names) {
    contestants.push_back([&, kernel = make_fused_kernel(spec, name, bench.context())](int i) {
      kernel.launch({.operands = set(i), .scratch = scratch.get(), .stream = bench.stream()});
    });
  }
  const std::vector<Timing> timings = bench.time_in_turns(contestants);
  fmt::print("| {} {}x{}, F {} | {:.1f} | {:.1f} | {:.1f} | {:.2f} |", spec.op, shape.rows,
             shape.width, shape.ffn, timings[0].ns / 1e3, timings[1].ns / 1e3, timings[2].ns / 1e3,
             choosing_s);
  for (size_t i = 0; i < names.size(); ++i) {
    fmt::print("{} {} {:.1f}", i == 0 ? "" : ",", names[i], timings[3 + i].ns / 1e3);
  }
  fmt::print(" |\n");
}

void run_fused_products(Bench& bench) {
  fmt::print(
      "\n| op | product alone, us | both kernels | as chosen | chosen in s | one kernel |\n");
  fmt::print("| --- | --- | --- | --- | --- | --- |\n");
  for (const FusedShape& shape :
       {FusedShape{8192, 4096, 14336}, FusedShape{16384, 2048, 8192}, FusedShape{8192, 5120, 27648},
        FusedShape{8192, 4096, 1792}, FusedShape{2048, 4096, 14336}}) {
    for (const bool is_forward : {true, false}) {
      run_fused_product(bench, shape, is_forward);
    }
  }
}

// ---- bias gradients

void run_bias_grads(Bench& bench) {
  fmt::print("\n| bias gradient | us | of the copy bandwidth |\n| --- | --- | --- |\n");
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{8192, 4608}, {16384, 2304}, {65536, 3072}}) {
    const OpSpec spec{"",
                      {},
                      {operand(DType::kBF16, Access::kRead, {rows, columns}),
                       operand(DType::kF32, Access::kReadWrite, {columns})}};
    const OperandSets sets(spec, bench.stream());
    const DeviceBytes scratch = allocate(bias_grad_scratch_bytes(rows, columns));
    const BiasGradArgs args{.rows = rows,
                            .columns = columns,
                            .accumulate = true,
                            .scratch = reinterpret_cast<float*>(scratch.get())};
    const Timing timing = bench.time([&](int i) {
      BiasGradArgs set_args = args;
      set_args.dy = sets[static_cast<size_t>(i) % sets.size()][0];
      set_args.db = reinterpret_cast<float*>(sets[static_cast<size_t>(i) % sets.size()][1]);
      bias_grad(set_args, bench.stream());
    });
    const double floor_ns = static_cast<double>(rows * columns * 2) / kCopyBytesPerNs;
    fmt::print("| {} x {} bf16 | {:.1f} | {:.2f} |\n", rows, columns, timing.ns / 1e3,
               floor_ns / timing.ns);
  }
}

// ---- attention

struct AttentionShape {
  int64_t batches;
  int64_t sequence;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_size;
};

/// Heads of 192 are those of latent attention; times do not depend on what is promised of values.
AttentionAttributes attributes_of_shape(const AttentionShape& s) {
  return {.heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_size = s.head_size,
          .sequence = s.sequence,
          .scale = 1.0 / std::sqrt(static_cast<double>(s.head_size)),
          .padding = {.value_size = s.head_size == 192 ? 128 : 0}};
}

OpSpec attention_spec(const AttentionShape& s, bool is_backward) {
  const int64_t rows = s.batches * s.sequence;
  const Shape qkv{rows, (s.heads + 2 * s.kv_heads) * s.head_size};
  const Shape out{rows, s.heads * s.head_size};
  const Shape lse{s.batches, s.heads, s.sequence};
  const Access made = is_backward ? Access::kRead : Access::kWrite;
  OpSpec spec{is_backward ? "attention_backward" : "attention",
              to_attributes(attributes_of_shape(s)),
              {operand(DType::kBF16, Access::kRead, qkv), operand(DType::kBF16, made, out),
               operand(DType::kF32, made, lse)}};
  if (is_backward) {
    spec.operands.push_back(operand(DType::kBF16, Access::kRead, out));
    spec.operands.push_back(operand(DType::kBF16, Access::kWrite, qkv));
  }
  return spec;
}

/// Operands of the backward whose out and lse belong to qkv.
OperandSets backward_operands(Bench& bench, const AttentionShape& shape,
                              const CudaKernel& forward) {
  OperandSets sets(attention_spec(shape, true), bench.stream());
  const DeviceBytes scratch = allocate(forward.scratch_bytes);
  for (size_t set = 0; set < sets.size(); ++set) {
    forward.launch(
        {.operands = sets[set].first(3), .scratch = scratch.get(), .stream = bench.stream()});
  }
  BRAID_CUDA_CHECK(cudaStreamSynchronize(bench.stream()));
  return sets;
}

double attention_tflops(const OpSpec& spec, const Timing& timing) {
  return spec_cost(spec).flops / timing.ns / 1e3;
}

void run_attention(Bench& bench) {
  const std::vector<AttentionShape> shapes = {
      {4, 2048, 32, 8, 128},  {2, 4096, 32, 8, 128}, {1, 8192, 32, 8, 128},
      {2, 4096, 32, 8, 64},   {2, 8192, 32, 8, 64},  {16, 1024, 12, 12, 64},
      {16, 1024, 28, 4, 128}, {2, 4096, 32, 8, 96},  {4, 4096, 16, 16, 192}};
  const std::vector<int64_t> limits_mib = {128, 512, 1024, 2048, 4096};
  fmt::print(
      "\n| sequences x tokens, heads/kv, head | forward TFLOP/s | backward, sm90 | cuDNN's, "
      "atomics "
      "| repeatable, d_scores below");
  for (const int64_t mib : limits_mib) {
    fmt::print(" {} MiB |", mib);
  }
  fmt::print(" made in s |\n|");
  for (size_t column = 0; column < limits_mib.size() + 5; ++column) {
    fmt::print(" --- |");
  }
  fmt::print("\n");
  for (const AttentionShape& shape : shapes) {
    const OpSpec forward_spec = attention_spec(shape, false);
    const OpSpec backward_spec = attention_spec(shape, true);
    CudaKernel forward;
    const double making_s =
        seconds_of([&] { forward = make_cuda_kernel(forward_spec, bench.context()); });
    const OperandSets sets = backward_operands(bench, shape, forward);
    const double forward_rate = attention_tflops(forward_spec, bench.time(forward, sets));
    const auto backward_rate = [&](AttentionBackwardOptions options) {
      const CudaKernel kernel =
          make_cuda_attention_backward(backward_spec, bench.context(), options);
      return std::pair(attention_tflops(backward_spec, bench.time(kernel, sets)),
                       kernel.scratch_bytes);
    };
    fmt::print("| {} x {}, {}/{}, {} | {:.0f} |", shape.batches, shape.sequence, shape.heads,
               shape.kv_heads, shape.head_size, forward_rate);
    if (has_attention_backward_sm90(AttentionSizes(backward_spec))) {
      const auto [rate, scratch] = backward_rate({.method = AttentionMethod::kSm90});
      fmt::print(" {:.0f}, {} MiB |", rate, scratch >> 20);
    } else {
      fmt::print(" |");
    }
    constexpr auto kCudnn = AttentionMethod::kCudnn;
    const auto [atomic_rate, atomic_scratch] =
        backward_rate({.repeatable = false, .method = kCudnn});
    fmt::print(" {:.0f}, {} MiB |", atomic_rate, atomic_scratch >> 20);
    for (const int64_t mib : limits_mib) {
      const auto [rate, scratch] =
          backward_rate({.max_d_scores_bytes = mib << 20, .method = kCudnn});
      fmt::print(" {:.0f}, {} MiB |", rate, scratch >> 20);
    }
    fmt::print(" {:.2f} |\n", making_s);
  }
}

/// The spec inside documents, whose flops are those of documents of `tokens` tokens.
OpSpec document_spec(const AttentionShape& shape, bool is_backward, int64_t tokens) {
  OpSpec spec = attention_spec(shape, is_backward);
  AttentionAttributes attributes = attributes_of_shape(shape);
  attributes.documents = {.documents = true, .document_length = tokens};
  spec.attributes = to_attributes(attributes);
  spec.operands.insert(spec.operands.begin() + (is_backward ? 4 : 1),
                       operand(DType::kI32, Access::kRead, {shape.batches * shape.sequence}));
  return spec;
}

/// Time and rate inside equally long documents. Gradients are those of random out and lse: the time
/// does not depend on values.
Timing time_documents(Bench& bench, const AttentionShape& shape, bool is_backward, int64_t tokens) {
  const OpSpec spec = document_spec(shape, is_backward, tokens);
  const OperandSets sets(spec, bench.stream());
  std::vector<int32_t> starts;
  for (int64_t row = 0; row < shape.batches * shape.sequence; ++row) {
    starts.push_back(static_cast<int32_t>(row % shape.sequence / tokens * tokens));
  }
  for (size_t set = 0; set < sets.size(); ++set) {
    BRAID_CUDA_CHECK(cudaMemcpy(sets[set][is_backward ? 4 : 1], starts.data(),
                                starts.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
  }
  return bench.time(make_cuda_kernel(spec, bench.context()), sets);
}

void run_document_attention(Bench& bench) {
  const std::vector<AttentionShape> shapes = {
      {1, 8192, 32, 8, 128}, {2, 8192, 32, 8, 64}, {4, 2048, 32, 8, 128}};
  fmt::print(
      "\n| sequences x tokens, heads/kv, head | tokens of a document | forward us | TFLOP/s | "
      "backward us | TFLOP/s | without documents us |\n| --- | --- | --- | --- | --- | --- | --- "
      "|\n");
  for (const AttentionShape& shape : shapes) {
    const CudaKernel forward = make_cuda_kernel(attention_spec(shape, false), bench.context());
    const CudaKernel backward = make_cuda_kernel(attention_spec(shape, true), bench.context());
    const OperandSets sets = backward_operands(bench, shape, forward);
    const double forward_us = bench.time(forward, sets).ns / 1e3;
    const double backward_us = bench.time(backward, sets).ns / 1e3;
    for (const int64_t tokens : {int64_t{256}, int64_t{1024}, shape.sequence}) {
      fmt::print("| {} x {}, {}/{}, {} | {} |", shape.batches, shape.sequence, shape.heads,
                 shape.kv_heads, shape.head_size, tokens);
      for (const bool is_backward : {false, true}) {
        const Timing timing = time_documents(bench, shape, is_backward, tokens);
        fmt::print(" {:.0f} | {:.0f} |", timing.ns / 1e3,
                   attention_tflops(document_spec(shape, is_backward, tokens), timing));
      }
      fmt::print(" {:.0f} + {:.0f} |\n", forward_us, backward_us);
    }
  }
}

struct Table {
  const char* name;
  void (*run)(Bench&);
};

constexpr Table kTables[] = {{"products", run_products},
                             {"fused_products", run_fused_products},
                             {"bias_grads", run_bias_grads},
                             {"attention", run_attention},
                             {"document_attention", run_document_attention}};

/// The table of that name, or all if it is empty. Throws ConfigError if there is no such table.
void run(std::string cache_folder, const std::string& only) {
  std::vector<Table> chosen;
  std::string names;
  for (const Table& table : kTables) {
    names += fmt::format(" {}", table.name);
    if (only.empty() || only == table.name) {
      chosen.push_back(table);
    }
  }
  if (chosen.empty()) {
    throw ConfigError(fmt::format("there is no table {}; tables are{}", only, names));
  }
  Bench bench(std::move(cache_folder));
  fmt::print("cuBLASLt {}, cuDNN {}\n\n", cublasLtGetVersion(), cudnnGetVersion());
  for (const Table& table : chosen) {
    table.run(bench);
  }
}

}  // namespace
}  // namespace braid

/// gemm_attention_bench [CACHE_FOLDER [TABLE]]
int main(int argc, char** argv) {
  try {
    braid::run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
    return 0;
  } catch (const braid::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
