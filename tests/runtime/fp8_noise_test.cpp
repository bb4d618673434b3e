// Noise that FP8 recipes add to what each product of a small model computes: its output, its input
// gradient and its weight gradient. Nothing is trained.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backends/cpu/kernels/gemm.h"
#include "model/forward.h"
#include "model/parameters.h"
#include "ops/autodiff.h"
#include "ops/quantize.h"
#include "ops/quantize_products.h"
#include "ops/scaled_linear.h"
#include "support/kernel_harness.h"
#include "support/signal_to_noise.h"

namespace braid {
namespace {

constexpr int64_t kSequence = 128;
constexpr int64_t kMicrobatch = 2;

ModelSpec model_of(const ModelStyle& style) {
  return {.style = style,
          .layers = 2,
          .width = 128,
          .heads = 4,
          .kv_heads = style == kGpt2Style ? 4 : 2,
          .head_size = 32,
          .ffn = 256,
          .vocabulary = 128,
          .max_positions = kSequence,
          .tied_embeddings = style == kGpt2Style,
          .qkv_bias = style == kGpt2Style,
          .init_std = 0.07};
}

struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;

  double& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * columns + c)]; }
  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * columns + c)]; }
  Matrix transposed() const {
    Matrix other{columns, rows, std::vector<double>(values.size())};
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        other.at(c, r) = at(r, c);
      }
    }
    return other;
  }
};

/// a b^T in f64.
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.rows, std::vector<double>(static_cast<size_t>(a.rows * b.rows))};
  WorkerPool workers(1);
  gemm(workers,
       GemmArgs<double>{.transpose_b = true,
                        .m = a.rows,
                        .n = b.rows,
                        .k = a.columns,
                        .a = a.values.data(),
                        .lda = a.columns,
                        .b = b.values.data(),
                        .ldb = b.columns,
                        .c = c.values.data(),
                        .ldc = b.rows},
       {});
  return c;
}

/// One microbatch forward and backward through a fresh model, node by node. Each value has memory
/// of its own, so that all of them can be read at the end.
class GraphRun {
 public:
  GraphRun(const ModelSpec& spec, DType dtype, const std::optional<Fp8Recipe>& recipe)
      : graph_(build_forward(spec,
                             {.microbatch = kMicrobatch, .sequence = kSequence, .dtype = dtype})) {
    differentiate(graph_);
    if (recipe) {
      sites_ = quantize_products(graph_, *recipe);
    }
    for (const Value& value : graph_.values) {
      memory_.emplace_back(static_cast<size_t>(value.shape.num_elems()) * dtype_bytes(value.dtype));
      std::ranges::fill(memory_.back().bytes(), std::byte{0});
    }
    fill_inputs(spec.vocabulary);
    fill_weights(spec);
    for (const std::vector<Node>* nodes : {&graph_.weights, &graph_.forward, &graph_.backward}) {
      for (const Node& node : *nodes) {
        run(node);
      }
    }
  }

  const StageGraph& graph() const { return graph_; }
  const std::vector<ProductSite>& sites() const { return sites_; }

  /// A vector is one row.
  Matrix matrix(ValueId id) const {
    const Value& value = graph_.value(id);
    const bool is_vector = value.shape.rank() == 1;
    Matrix matrix{is_vector ? 1 : value.shape[0], is_vector ? value.shape[0] : value.shape[1], {}};
    const size_t elem = dtype_bytes(value.dtype);
    for (int64_t i = 0; i < value.shape.num_elems(); ++i) {
      matrix.values.push_back(
          load_as_double(value.dtype, memory_[id.index()].data() + static_cast<size_t>(i) * elem));
    }
    return matrix;
  }

 private:
  void set(size_t value, const std::vector<double>& list) {
    const DType dtype = graph_.values[value].dtype;
    for (size_t i = 0; i < list.size(); ++i) {
      store_double(dtype, memory_[value].data() + i * dtype_bytes(dtype), list[i]);
    }
  }

  void fill_inputs(int64_t vocabulary) {
    TestRandom random(1);
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      const Value& value = graph_.values[i];
      if (value.kind == ValueKind::kInput) {
        std::vector<double> list(static_cast<size_t>(value.shape.num_elems()));
        std::ranges::generate(list, [&] {
          return value.dtype == DType::kI32 ? static_cast<double>(random.below(vocabulary))
                                            : 1.0 / (kMicrobatch * kSequence);
        });
        set(i, list);
      }
    }
  }

  void fill_weights(const ModelSpec& spec) {
    for (const Parameter& parameter : model_parameters(spec)) {
      std::vector<float> initial(static_cast<size_t>(parameter.shape.num_elems()));
      initial_values(parameter, spec.vocabulary, 3, 0, initial);
      for (size_t i = 0; i < graph_.values.size(); ++i) {
        if (graph_.values[i].kind == ValueKind::kParam && graph_.values[i].name == parameter.name) {
          set(i, {initial.begin(), initial.end()});
        }
      }
    }
  }

  void run(const Node& node) {
    const CpuKernel kernel = make_cpu_kernel(node.spec, 1);
    GuardedBuffer scratch(kernel.scratch_bytes);
    std::vector<std::byte*> operands;
    for (const ValueId id : node.operands) {
      operands.push_back(memory_[id.index()].data());
    }
    WorkerPool workers(1);
    kernel.run({.operands = operands, .scratch = scratch.bytes(), .workers = workers});
  }

  StageGraph graph_;
  std::vector<ProductSite> sites_;
  std::vector<GuardedBuffer> memory_;
};

/// A product of FP8 factors in a run: result = first second^T.
class Fp8Product {
 public:
  Fp8Product(const GraphRun& run, const Node& node) : run_(run), node_(node) {
    // dw has the rows of dy, which is the second factor.
    if (node.spec.op == kScaledLinearWgradOp.name) {
      std::swap(first_, second_);
    }
  }

  ValueId result() const { return node_.operands.back(); }
  std::string name() const { return node_.spec.op + " " + node_.site; }

  /// f64, from the factors before they were rounded to FP8.
  Matrix exact() const { return product(source(first_), source(second_)); }
  /// f64, from the same FP8 factors.
  Matrix of_rounded() const { return product(rounded(first_), rounded(second_)); }

 private:
  /// What `quantize` has read.
  Matrix source(size_t factor) const {
    const ValueId copy = node_.operands[factor];
    for (const auto* nodes :
         {&run_.graph().weights, &run_.graph().forward, &run_.graph().backward}) {
      for (const Node& node : *nodes) {
        const auto at = std::ranges::find(node.operands, copy);
        if (node.spec.op.starts_with("quantize") && at != node.operands.end()) {
          const QuantizeOperands places(attributes_of<QuantizeAttributes>(node.spec));
          const Matrix read = run_.matrix(node.operands[0]);
          return at - node.operands.begin() == places.row ? read : read.transposed();
        }
      }
    }
    throw_internal_error("nothing writes factor {} of {}", factor, name());
  }

  Matrix rounded(size_t factor) const {
    Matrix data = run_.matrix(node_.operands[factor]);
    const Matrix scales = run_.matrix(node_.operands[factor + 1]);
    const int64_t block = std::get<int64_t>(*node_.spec.find_attribute("block"));
    const bool is_square = block == 128 && second_ == 2 && factor == 2;  // a weight
    for (int64_t r = 0; r < data.rows; ++r) {
      for (int64_t c = 0; c < data.columns; ++c) {
        data.at(r, c) *= block == 0  ? scales.values[0]
                         : is_square ? scales.at(r / block, c / block)
                                     : scales.at(c / block, r);
      }
    }
    return data;
  }

  const GraphRun& run_;
  const Node& node_;
  size_t first_ = 0;
  size_t second_ = 2;
};

/// The least signal-to-noise ratios in dB of a kind of product, over all sites.
struct Noise {
  double alone = INFINITY;    ///< against f64 with the same factors, not rounded to FP8
  double sums = INFINITY;     ///< against f64 with the same FP8 factors
  double network = INFINITY;  ///< against the whole model in f64 without FP8
};

struct Recipe {
  const char* name;
  Fp8Recipe recipe;
  double least_gradient;  ///< limit of `alone` for gradients, in dB
};

/// E5M2 has one bit less than E4M3: 6 dB on one factor.
std::vector<Recipe> recipes() {
  Fp8Recipe squares = Fp8Recipe::mx();
  squares.square_weights = true;
  return {{"tensor", Fp8Recipe::tensor(), 24},
          {"block", Fp8Recipe::blocks(), 25},
          {"mxfp8", Fp8Recipe::mx(), 25},
          {"mxfp8, square weights", squares, 25}};
}

void expect_little_noise(const Noise& noise, double least_alone, const std::string& name) {
  EXPECT_GE(noise.alone, least_alone) << name;
  EXPECT_GE(noise.sums, 140) << name;
}

/// By op.
using NoiseByOp = std::map<std::string, Noise>;

NoiseByOp noise_of(const ModelSpec& spec, const Recipe& recipe, const GraphRun& wide) {
  const GraphRun narrow(spec, DType::kF32, recipe.recipe);
  NoiseByOp least;
  for (const auto* nodes : {&narrow.graph().forward, &narrow.graph().backward}) {
    for (const Node& node : *nodes) {
      if (!node.spec.op.starts_with("scaled_linear")) {
        continue;
      }
      const Fp8Product it(narrow, node);
      const std::vector<double> found = narrow.matrix(it.result()).values;
      // Values of the graph without FP8 have the same ids.
      const Noise here{.alone = snr_db(it.exact().values, found),
                       .sums = snr_db(it.of_rounded().values, found),
                       .network = snr_db(wide.matrix(it.result()).values, found)};
      const bool is_output = node.spec.op == kScaledLinearOp.name;
      expect_little_noise(here, is_output ? 25 : recipe.least_gradient,
                          fmt::format("{}: {}", recipe.name, it.name()));
      Noise& noise = least[node.spec.op];
      noise = {.alone = std::min(noise.alone, here.alone),
               .sums = std::min(noise.sums, here.sums),
               .network = std::min(noise.network, here.network)};
    }
  }
  return least;
}

/// Figures of docs/numerics.md: y, dx, dw.
struct Documented {
  double alone[3];
  double network[3];
};

void expect_as_documented(const ModelStyle& style, const std::vector<Documented>& documented) {
  const ModelSpec spec = model_of(style);
  const GraphRun wide(spec, DType::kF64, std::nullopt);
  for (size_t i = 0; i < documented.size(); ++i) {
    const NoiseByOp noise = noise_of(spec, recipes()[i], wide);
    ASSERT_EQ(noise.size(), 3u);
    size_t column = 0;
    for (const auto& [op, least] : noise) {  // in the order of the names
      const std::string name = fmt::format("{} {}", recipes()[i].name, op);
      EXPECT_NEAR(least.alone, documented[i].alone[column], 0.3) << name;
      EXPECT_NEAR(least.network, documented[i].network[column], 0.3) << name;
      ++column;
    }
  }
}

TEST(Fp8Noise, OfProductsOfLlama) {
  expect_as_documented(kLlamaStyle, {{{28.3, 24.4, 24.6}, {17.1, 15.4, 15.6}},
                                     {{28.2, 28.4, 28.7}, {17.1, 16.4, 16.8}},
                                     {{28.2, 28.4, 28.7}, {17.1, 16.4, 16.8}},
                                     {{28.2, 28.4, 28.7}, {17.1, 16.4, 16.8}}});
}

TEST(Fp8Noise, OfProductsOfGpt2) {
  expect_as_documented(kGpt2Style, {{{28.2, 24.5, 25.1}, {21.4, 16.7, 16.9}},
                                    {{28.2, 28.4, 29.2}, {21.4, 19.1, 19.3}},
                                    {{28.2, 28.4, 29.2}, {21.4, 19.1, 19.4}}});
}

}  // namespace
}  // namespace braid
