// Every kernel that memory limits, at the shapes of llama-1b (microbatch 2 of 8192 tokens) and
// llama-8b (1 of 8192), and those of Mamba-2 layers at theirs, against its floor: the bytes that
// must cross device memory once, over the bandwidth of a large copy measured in the same run.
// Replays of a captured graph whose launches rotate over sets of operands that do not fit in the
// cache together; the median of the replays.
//   braid_bench_memory_bound [part of a name]
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backends/cuda/architecture.h"
#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/kernel.h"
#include "ops/activation.h"
#include "ops/adapter.h"
#include "ops/attributes.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/mamba2.h"
#include "ops/norm.h"
#include "ops/op.h"
#include "ops/optimizer.h"
#include "ops/rope.h"

namespace braid {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kI32 = DType::kI32;
constexpr int64_t kVocabulary = 128256;

OperandSpec in(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kRead, .shape = shape};
}
OperandSpec out(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kWrite, .shape = shape};
}
OperandSpec in_out(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kReadWrite, .shape = shape};
}

size_t bytes_of(const OperandSpec& operand) {
  return static_cast<size_t>(operand.shape.num_elems()) * dtype_bytes(operand.dtype);
}

/// Random elements of each dtype, uniform in [0.05, 1) (a second moment is positive) or tokens of
/// the vocabulary; buffers are filled with them again and again.
class RandomBlocks {
 public:
  const std::vector<std::byte>& of(DType dtype) {
    std::vector<std::byte>& block = blocks_[dtype];
    while (block.size() < kElems * dtype_bytes(dtype)) {
      append(dtype, block);
    }
    return block;
  }

 private:
  static constexpr size_t kElems = size_t{1} << 22;

  void append(DType dtype, std::vector<std::byte>& block) {
    const auto put = [&block](auto value) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
      block.insert(block.end(), bytes, bytes + sizeof(value));
    };
    if (dtype == kI32) {
      put(tokens_(random_));
    } else if (dtype == kBF16) {
      put(BFloat16(uniform_(random_)));
    } else if (dtype == kF32) {
      put(uniform_(random_));
    } else {
      put(static_cast<double>(uniform_(random_)));
    }
  }

  std::mt19937_64 random_{1};
  std::uniform_real_distribution<float> uniform_{0.05f, 1.0f};
  std::uniform_int_distribution<int32_t> tokens_{0, static_cast<int32_t>(kVocabulary - 1)};
  std::map<DType, std::vector<std::byte>> blocks_;
};

/// Device memory of all operands of one launch.
class OperandSet {
 public:
  OperandSet(const OpSpec& spec, RandomBlocks& random) {
    for (const OperandSpec& operand : spec.operands) {
      const size_t bytes = bytes_of(operand);
      memory_.emplace_back(static_cast<int64_t>((bytes + 255) / 256 * 256), "an operand");
      operands_.push_back(memory_.back().data());
      fill(operands_.back(), bytes, random.of(operand.dtype));
    }
  }
  std::span<std::byte* const> operands() const { return operands_; }

 private:
  /// Uploads a block, then fills the rest by copying what is already there.
  static void fill(std::byte* to, size_t bytes, const std::vector<std::byte>& block) {
    size_t done = std::min(bytes, block.size());
    BRAID_CUDA_CHECK(cudaMemcpy(to, block.data(), done, cudaMemcpyHostToDevice));
    while (done < bytes) {
      const size_t more = std::min(done, bytes - done);
      BRAID_CUDA_CHECK(cudaMemcpy(to + done, to, more, cudaMemcpyDeviceToDevice));
      done += more;
    }
  }

  std::vector<DeviceArena> memory_;
  std::vector<std::byte*> operands_;
};

struct BenchCase {
  std::string name;
  OpSpec spec;
  std::optional<int> capability = {};  ///< whose kernels; none: those of this GPU
};

/// Seconds per launch.
double measure_s(const OpSpec& spec, CudaContext& context, RandomBlocks& random) {
  check_spec(spec);
  size_t set_bytes = 0;
  for (const OperandSpec& operand : spec.operands) {
    set_bytes += bytes_of(operand);
  }
  // Three times the cache of 60 MB between two uses of one set, where a set is not larger anyway.
  const size_t num_sets =
      std::clamp<size_t>((size_t{180} << 20) / std::max<size_t>(set_bytes, 1), 1, 8);
  std::vector<OperandSet> sets;
  for (size_t i = 0; i < num_sets; ++i) {
    sets.emplace_back(spec, random);
  }
  const CudaKernel kernel = make_cuda_kernel(spec, context);
  const DeviceArena scratch(static_cast<int64_t>(kernel.scratch_bytes + 256), "scratch");
  const CudaStream stream(0);
  const size_t launches =
      num_sets * std::clamp<size_t>((size_t{8} << 30) / (set_bytes * num_sets + 1), 4, 16);
  CudaCapture capture(stream);
  for (size_t i = 0; i < launches; ++i) {
    kernel.launch(
        {.operands = sets[i % num_sets].operands(), .scratch = scratch.data(), .stream = stream});
  }
  const CudaGraphExec graph(capture.end(), stream);
  std::vector<double> seconds;
  for (int replay = 0; replay < 13; ++replay) {
    const CudaEvent begin(EventTiming::kTimed);
    const CudaEvent end(EventTiming::kTimed);
    BRAID_CUDA_CHECK(cudaEventRecord(begin, stream));
    BRAID_CUDA_CHECK(cudaGraphLaunch(graph, stream));
    BRAID_CUDA_CHECK(cudaEventRecord(end, stream));
    BRAID_CUDA_CHECK(cudaEventSynchronize(end));
    float milliseconds = 0;
    BRAID_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    if (replay >= 2) {
      seconds.push_back(1e-3 * static_cast<double>(milliseconds) / static_cast<double>(launches));
    }
  }
  std::nth_element(seconds.begin(), seconds.begin() + 5, seconds.end());
  return seconds[5];
}

/// Shapes of one model and microbatch.
struct ModelShapes {
  std::string name;
  int64_t rows;
  int64_t width;
  int64_t ffn;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_size;
};
const ModelShapes kModels[] = {{"llama-1b", 2 * 8192, 2048, 8192, 32, 8, 64},
                               {"llama-8b", 8192, 4096, 14336, 32, 8, 128}};

std::vector<BenchCase> model_cases(const ModelShapes& m) {
  const Shape rows{m.rows, m.width};
  const Shape width{m.width};
  const Shape statistics{m.rows};
  const Shape ffn{m.rows, m.ffn};
  const Shape gate_up{m.rows, 2 * m.ffn};
  const Shape qkv{m.rows, (m.heads + 2 * m.kv_heads) * m.head_size};
  const Shape logits{m.rows, kVocabulary};
  const auto norm = to_attributes(NormAttributes{});
  const auto rope = [&](bool inverse) {
    return to_attributes(RopeAttributes{.heads = m.heads,
                                        .kv_heads = m.kv_heads,
                                        .head_size = m.head_size,
                                        .sequence = 8192,
                                        .theta = 500000.0,
                                        .inverse = inverse});
  };
  const auto backward = to_attributes(NormBackwardAttributes{.has_d_sum = true});
  const auto loss = to_attributes(CrossEntropyAttributes{.vocabulary = kVocabulary});
  const auto loss_backward = to_attributes(CrossEntropyShardAttributes{.vocabulary = kVocabulary});
  std::vector<BenchCase> cases = {
      {"",
       {"rmsnorm",
        norm,
        {in(kBF16, rows), in(kBF16, width), out(kBF16, rows), out(kF32, statistics)}}},
      {"",
       {"add_rmsnorm",
        norm,
        {in(kBF16, rows), in(kBF16, rows), in(kBF16, width), out(kBF16, rows), out(kBF16, rows),
         out(kF32, statistics)}}},
      {"",
       {"rmsnorm_backward",
        backward,
        {in(kBF16, rows), in(kBF16, width), in(kF32, statistics), in(kBF16, rows), in(kBF16, rows),
         out(kBF16, rows), in_out(kF32, width)}}},
      {"",
       {"layernorm",
        norm,
        {in(kBF16, rows), in(kBF16, width), in(kBF16, width), out(kBF16, rows),
         out(kF32, statistics), out(kF32, statistics)}}},
      {"",
       {"layernorm_backward",
        backward,
        {in(kBF16, rows), in(kBF16, width), in(kF32, statistics), in(kF32, statistics),
         in(kBF16, rows), in(kBF16, rows), out(kBF16, rows), in_out(kF32, width),
         in_out(kF32, width)}}},
      {"", {"rope", rope(false), {in(kBF16, qkv), out(kBF16, qkv)}}},
      {"", {"swiglu", {}, {in(kBF16, gate_up), out(kBF16, ffn)}}},
      {"", {"swiglu_backward", {}, {in(kBF16, gate_up), in(kBF16, ffn), out(kBF16, gate_up)}}},
      {"", {"gelu", {}, {in(kBF16, ffn), out(kBF16, ffn)}}},
      {"", {"gelu_backward", {}, {in(kBF16, ffn), in(kBF16, ffn), out(kBF16, ffn)}}},
      {"", {"add", {}, {in(kBF16, rows), in(kBF16, rows), out(kBF16, rows)}}},
      {"",
       {"embedding",
        to_attributes(EmbeddingAttributes{.sequence = 8192}),
        {in(kI32, statistics), in(kBF16, {kVocabulary, m.width}), out(kBF16, rows)}}},
      {"",
       {"embedding_wgrad",
        to_attributes(EmbeddingWgradAttributes{}),
        {in(kI32, statistics), in(kBF16, rows), in_out(kF32, {kVocabulary, m.width})}}},
      {"",
       {"position_embedding_wgrad",
        to_attributes(PositionEmbeddingWgradAttributes{.sequence = 8192}),
        {in(kBF16, rows), in_out(kF32, {8192, m.width})}}},
      {"",
       {"cross_entropy",
        loss,
        {in(kBF16, logits), in(kI32, statistics), in(kF32, {1}), out(kF32, {1}),
         out(kF32, statistics)}}},
      {"",
       {"cross_entropy_backward",
        loss_backward,
        {in(kBF16, logits), in(kI32, statistics), in(kF32, {1}), in(kF32, statistics),
         out(kBF16, logits)}}},
  };
  for (BenchCase& bench : cases) {
    bench.name = m.name + " " + bench.spec.op;
  }
  return cases;
}

/// Adapters of llama-8b: on query, key and value, on gate and up, and on fc2.
std::vector<BenchCase> adapter_cases() {
  struct Product {
    std::string_view name;
    std::vector<int64_t> begins;
    std::vector<int64_t> sizes;
    int64_t step;
  };
  const std::vector<Product> products = {{"qkv", {0, 4096, 5120}, {4096, 1024, 1024}, 1},
                                         {"gate and up", {0, 1}, {14336, 14336}, 2},
                                         {"fc2", {0}, {4096}, 1}};
  constexpr int64_t kRows = 8192;
  constexpr double kScale = 2.0;
  std::vector<BenchCase> cases;
  for (const Product& product : products) {
    const int64_t width = std::accumulate(product.sizes.begin(), product.sizes.end(), int64_t{0});
    AddAdaptersAttributes a{.scale = kScale, .step = product.step, .begin = product.begins[0]};
    std::vector<OperandSpec> operands = {in(kBF16, {kRows, width})};
    for (size_t i = 0; i < product.sizes.size(); ++i) {
      operands.push_back(in(kBF16, {kRows, product.sizes[i]}));
    }
    a.second_begin = product.begins.size() > 1 ? product.begins[1] : 0;
    a.third_begin = product.begins.size() > 2 ? product.begins[2] : 0;
    operands.push_back(out(kBF16, {kRows, width}));
    cases.push_back({fmt::format("llama-8b add_adapters {}", product.name),
                     {"add_adapters", to_attributes(a), operands}});
    const AdapterGradAttributes grad{
        .scale = kScale, .step = product.step, .begin = product.begins.back()};
    cases.push_back({fmt::format("llama-8b adapter_grad {}", product.name),
                     {"adapter_grad",
                      to_attributes(grad),
                      {in(kBF16, {kRows, width}), out(kBF16, {kRows, product.sizes.back()})}}});
  }
  return cases;
}

/// Ranges of parameters: a layer of llama-8b, and its embedding.
std::vector<BenchCase> range_cases() {
  std::vector<BenchCase> cases;
  for (const int64_t count : {int64_t{218112000}, kVocabulary * 4096}) {
    const Shape n{count};
    const std::string size = fmt::format(" {} M", count / 1000000);
    cases.push_back({"adamw" + size,
                     {"adamw",
                      to_attributes(AdamwAttributes{.weight_decay = 0.1, .has_param = true}),
                      {in(kF32, n), in(kF32, {1}), in(kF32, {3}), in_out(kF32, n), in_out(kF32, n),
                       in_out(kF32, n), out(kBF16, n)}}});
    cases.push_back(
        {"squared_norm" + size, {"squared_norm", {}, {in(kF32, n), out(DType::kF64, {1})}}});
    cases.push_back({"cast to bf16" + size, {"cast", {}, {in(kF32, n), out(kBF16, n)}}});
    cases.push_back({"fill" + size, {"fill", to_attributes(FillAttributes{}), {out(kF32, n)}}});
  }
  cases.push_back({"clip_scale 300",
                   {"clip_scale",
                    to_attributes(ClipScaleAttributes{.max_norm = 1.0}),
                    {in(DType::kF64, {300}), out(kF32, {1}), out(kF32, {1})}}});
  return cases;
}

/// Each case, on Hopper also with the kernels of other GPUs, which run there, too.
std::vector<BenchCase> with_other_kernels(const std::vector<BenchCase>& cases) {
  constexpr int kA100 = 80;
  std::vector<BenchCase> both;
  for (const BenchCase& bench : cases) {
    both.push_back(bench);
    if (runs_hopper_kernels(gpu_capability())) {
      both.push_back({bench.name + ", kernels of other GPUs", bench.spec, kA100});
    }
  }
  return both;
}

/// Mamba-2 layers of nemotron-h-8b and nemotron-h-4b (one sequence of 8192) and mamba2-2.7b (two of
/// 4096).
std::vector<BenchCase> mamba2_cases() {
  struct Layer {
    std::string_view model;
    int64_t sequence;
    int64_t heads;
    int64_t groups;
  };
  std::vector<BenchCase> cases;
  for (const Layer& layer :
       {Layer{"nemotron-h-8b", 8192, 128, 8}, Layer{"nemotron-h-4b", 8192, 112, 8},
        Layer{"mamba2-2.7b", 4096, 80, 1}}) {
    constexpr int64_t kRows = 8192;
    constexpr int64_t kTaps = 4;
    const Mamba2Attributes a{.sequence = layer.sequence,
                             .heads = layer.heads,
                             .head_size = 64,
                             .groups = layer.groups,
                             .state = 128,
                             .chunk = 128,
                             .norm_groups = layer.groups};
    const Shape heads{a.heads};
    const Shape row{kRows, a.row_elems()};
    const Shape inner{kRows, a.inner()};
    const Shape rstd{kRows, a.norm_groups};
    const Shape taps{a.convolved(), kTaps};
    std::vector<OperandSpec> forward = {
        in(kBF16, row),   in(kBF16, taps),  in(kBF16, {a.convolved()}), in(kBF16, heads),
        in(kBF16, heads), in(kBF16, heads), in(kBF16, {a.inner()})};
    std::vector<OperandSpec> backward = forward;
    forward.insert(forward.end(), {out(kBF16, inner), out(kF32, rstd), out(kBF16, inner)});
    backward.insert(backward.end(),
                    {in(kBF16, inner), in(kF32, rstd), in(kBF16, inner), out(kBF16, row),
                     in_out(kF32, taps), in_out(kF32, {a.convolved()}), in_out(kF32, heads),
                     in_out(kF32, heads), in_out(kF32, heads), in_out(kF32, {a.inner()})});
    cases.push_back({fmt::format("{} mamba2", layer.model), {"mamba2", to_attributes(a), forward}});
    cases.push_back(
        {fmt::format("{} mamba2_backward", layer.model),
         {"mamba2_backward", to_attributes(Mamba2BackwardAttributes{.core = a}), backward}});
  }
  return with_other_kernels(cases);
}

void print_row(const BenchCase& bench, double seconds, double bytes_per_s) {
  const OpCost cost = spec_cost(bench.spec);
  const double bytes = cost.bytes_read + cost.bytes_written;
  fmt::print("| {} | {:.1f} | {:.1f} | {:.2f} | {:.0f} % |\n", bench.name, bytes * 1e-6,
             seconds * 1e6, bytes / seconds * 1e-12, 100 * bytes / bytes_per_s / seconds);
  std::fflush(stdout);
}

void run(const std::string& part) {
  CudaContext context(0, "");
  RandomBlocks random;
  const Shape large{int64_t{1} << 31};
  const double copy_s =
      measure_s({"copy", {}, {in(kBF16, large), out(kBF16, large)}}, context, random);
  const double bytes_per_s = 8.0 * 1073741824.0 / copy_s;
  fmt::print("copy of 4 GiB: {:.3f} TB/s read and written\n\n", bytes_per_s * 1e-12);
  fmt::print("| kernel | MB | us | TB/s | of the floor |\n|---|---|---|---|---|\n");
  std::vector<BenchCase> cases = range_cases();
  const auto append = [&cases](const std::vector<BenchCase>& more) {
    cases.insert(cases.end(), more.begin(), more.end());
  };
  for (const ModelShapes& model : kModels) {
    append(model_cases(model));
  }
  append(mamba2_cases());
  append(adapter_cases());
  for (const BenchCase& bench : cases) {
    if (bench.name.find(part) != std::string::npos) {
      const AssumedCapability assumed(bench.capability.value_or(gpu_capability()));
      print_row(bench, measure_s(bench.spec, context, random), bytes_per_s);
    }
  }
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  try {
    braid::run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    fmt::print(stderr, "memory_bound_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
