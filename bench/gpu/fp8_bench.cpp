// FP8 at the shapes of a layer of llama-8b, llama-1b and qwen2.5-7b with 8192 tokens: every form of
// quantize beside a copy of as many bytes, alone and of the results of SwiGLU, and every product
// beside the same in bf16; then the same of experts, of a step of qwen3-30b-a3b and mixtral-8x7b.
// All under steady load (SpecTimer::steady_ns): short runs have a higher clock. Prints Markdown
// tables.
//
//   braid_bench_fp8 [CACHE_FOLDER [PART_OF_A_MODEL'S_NAME]]
#include <cublasLt.h>
#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/cuda_context.h"
#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/grouped_linear.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/op.h"
#include "ops/quantize.h"
#include "ops/quantize_gathered.h"
#include "ops/quantize_grouped.h"
#include "ops/scaled_grouped_linear.h"
#include "ops/scaled_linear.h"
#include "ops/transpose_grouped.h"
#include "spec_timer.h"

namespace braid {
namespace {

constexpr DType kBF16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;
constexpr DType kE4M3 = DType::kF8E4M3;

OperandSpec in(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kRead, .shape = shape};
}
OperandSpec out(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kWrite, .shape = shape};
}
OperandSpec in_out(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kReadWrite, .shape = shape};
}

struct ModelShapes {
  std::string name;
  int64_t width;
  int64_t qkv;
  int64_t ffn;
};
constexpr int64_t kTokens = 8192;
const ModelShapes kModels[] = {{"llama-8b", 4096, 6144, 14336},
                               {"llama-1b", 2048, 3072, 8192},
                               {"qwen2.5-7b", 3584, 4608, 18944}};

// ---- quantize

struct Form {
  std::string name;
  QuantizeAttributes attributes;
};

const Form kForms[] = {
    {"one scale, row", {.block = 0, .column = false}},
    {"one scale, row + column", {.block = 0}},
    {"one scale, row + column + db", {.block = 0, .has_bias = true}},
    {"runs of 128, row", {.block = 128, .column = false}},
    {"runs of 128, column", {.block = 128, .row = false}},
    {"runs of 128, row + column", {.block = 128}},
    {"runs of 128, row + column + db", {.block = 128, .has_bias = true}},
    {"runs of 32, row + column", {.block = 32}},
    {"squares of 128, row + column", {.block = 128, .square = true}},
};

OpSpec quantize_spec(const Shape& x, const QuantizeAttributes& attributes,
                     std::vector<OperandSpec> inputs) {
  OpSpec spec{"quantize", to_attributes(attributes), std::move(inputs)};
  const auto add_copy = [&](bool exists, const Shape& shape) {
    if (exists) {
      spec.operands.push_back(out(kE4M3, shape));
      spec.operands.push_back(out(attributes.scales().dtype(), attributes.scales().shape(shape)));
    }
  };
  add_copy(attributes.row, x);
  add_copy(attributes.column, {x[1], x[0]});
  if (attributes.has_bias) {
    spec.operands.push_back(in_out(kF32, {x[1]}));
  }
  return spec;
}

void print_form(SpecTimer& timer, const Shape& x, const std::string& name, const OpSpec& spec) {
  const OpCost cost = spec_cost(spec);
  const double bytes = cost.bytes_read + cost.bytes_written;
  const Shape half{static_cast<int64_t>(bytes / 4)};
  const double copy_ns = timer.steady_ns({"copy", {}, {in(kBF16, half), out(kBF16, half)}});
  const double ns = timer.steady_ns(spec);
  fmt::print("| {} x {} | {} | {:.1f} | {:.0f} | {:.0f} | {:.0f}% |\n", x[0], x[1], name, ns / 1e3,
             bytes / ns, bytes / copy_ns, 100 * copy_ns / ns);
  std::fflush(stdout);
}

/// Copies of the results of add_rmsnorm: in one task with the norm, and after it.
void run_norms(SpecTimer& timer, const ModelShapes& model) {
  const Shape x{kTokens, model.width};
  const Shape rows{kTokens};
  const OperandSpec w = in(kBF16, {model.width});
  const std::vector<Attribute> norm = to_attributes(NormAttributes{});
  for (const int64_t block : {0, 128}) {
    print_form(timer, x, fmt::format("{} of add_rmsnorm", block == 0 ? "one scale" : "runs of 128"),
               quantize_spec(x, {.block = block, .source = {"add_rmsnorm", norm}},
                             {in(kBF16, x), in(kBF16, x), w, out(kBF16, x), out(kF32, rows)}));
  }
  print_form(timer, x, "add_rmsnorm alone",
             {"add_rmsnorm",
              norm,
              {in(kBF16, x), in(kBF16, x), w, out(kBF16, x), out(kBF16, x), out(kF32, rows)}});
}

/// Copies of the results of activation functions: in one task with the function, and after it.
void run_sources(SpecTimer& timer, const ModelShapes& model) {
  const Shape h{kTokens, model.ffn};
  const Shape gate_up{kTokens, 2 * model.ffn};
  for (const int64_t block : {0, 128}) {
    const std::string scales = block == 0 ? "one scale" : "runs of 128";
    print_form(timer, h, scales + " of swiglu",
               quantize_spec(h, {.block = block, .source = {"swiglu"}}, {in(kBF16, gate_up)}));
    print_form(timer, gate_up, scales + " of swiglu_backward",
               quantize_spec(gate_up, {.block = block, .source = {"swiglu_backward"}},
                             {in(kBF16, gate_up), in(kBF16, h)}));
  }
  print_form(timer, h, "swiglu alone", {"swiglu", {}, {in(kBF16, gate_up), out(kBF16, h)}});
  print_form(timer, gate_up, "swiglu_backward alone",
             {"swiglu_backward", {}, {in(kBF16, gate_up), in(kBF16, h), out(kBF16, gate_up)}});
}

void run_forms(SpecTimer& timer, const ModelShapes& model) {
  fmt::print("\n| {} x | form | us | GB/s | copy of as many bytes, GB/s | of the copy |\n",
             model.name);
  fmt::print("| --- | --- | --- | --- | --- | --- |\n");
  for (const int64_t columns : {model.width, model.qkv, model.ffn, 2 * model.ffn}) {
    for (const Form& form : kForms) {
      const Shape x{kTokens, columns};
      print_form(timer, x, form.name, quantize_spec(x, form.attributes, {in(kBF16, x)}));
    }
  }
  run_sources(timer, model);
  run_norms(timer, model);
}

// ---- products

struct Layer {
  std::string name;
  int64_t in = 0;
  int64_t out = 0;
};

void append_factor(OpSpec& spec, const Shape& shape, const ScaleLayout& layout) {
  spec.operands.push_back(in(kE4M3, shape));
  spec.operands.push_back(in(layout.dtype(), layout.shape(shape)));
}

OpSpec forward_spec(const Layer& layer, int64_t block) {
  OpSpec spec{"scaled_linear", to_attributes(ScaledLinearAttributes{.block = block}), {}};
  append_factor(spec, {kTokens, layer.in}, {.block = block});
  append_factor(spec, {layer.out, layer.in}, {.block = block, .square = block == 128});
  spec.operands.push_back(out(kBF16, {kTokens, layer.out}));
  return spec;
}

OpSpec dgrad_spec(const Layer& layer, int64_t block) {
  OpSpec spec{
      "scaled_linear_dgrad", to_attributes(ScaledLinearDgradAttributes{.block = block}), {}};
  append_factor(spec, {kTokens, layer.out}, {.block = block});
  append_factor(spec, {layer.in, layer.out}, {.block = block, .square = block == 128});
  spec.operands.push_back(out(kBF16, {kTokens, layer.in}));
  return spec;
}

OpSpec wgrad_spec(const Layer& layer, int64_t block) {
  OpSpec spec{
      "scaled_linear_wgrad", to_attributes(ScaledLinearWgradAttributes{.block = block}), {}};
  append_factor(spec, {layer.in, kTokens}, {.block = block});
  append_factor(spec, {layer.out, kTokens}, {.block = block});
  spec.operands.push_back(in_out(kF32, {layer.out, layer.in}));
  return spec;
}

/// A product of a layer: in bf16, and with scales.
struct Product {
  std::string name;
  OpSpec bf16;
  OpSpec (*scaled)(const Layer& layer, int64_t block);
};

std::vector<Product> products_of(const Layer& layer) {
  const Shape x{kTokens, layer.in};
  const Shape w{layer.out, layer.in};
  const Shape y{kTokens, layer.out};
  return {
      {"forward",
       {"linear", to_attributes(LinearAttributes{}), {in(kBF16, x), in(kBF16, w), out(kBF16, y)}},
       forward_spec},
      {"dgrad",
       {"linear_dgrad",
        to_attributes(LinearDgradAttributes{}),
        {in(kBF16, y), in(kBF16, w), out(kBF16, x)}},
       dgrad_spec},
      {"wgrad",
       {"linear_wgrad",
        to_attributes(LinearWgradAttributes{}),
        {in(kBF16, x), in(kBF16, y), in_out(kF32, w)}},
       wgrad_spec}};
}

constexpr int64_t kBlocks[] = {0, 128, 32};

/// Prints a row and adds its times.
void run_product(SpecTimer& timer, const Layer& layer, const Product& product,
                 std::vector<double>& total_ns) {
  std::vector<double> times = {timer.steady_ns(product.bf16)};
  for (const int64_t block : kBlocks) {
    times.push_back(timer.steady_ns(product.scaled(layer, block)));
  }
  const double flops = spec_cost(product.bf16).flops;
  fmt::print("| {} {} {} x {} |", layer.name, product.name, layer.in, layer.out);
  total_ns.resize(times.size());
  for (size_t i = 0; i < times.size(); ++i) {
    fmt::print(" {:.0f} |", flops / times[i] / 1e3);
    total_ns[i] += times[i];
  }
  fmt::print("\n");
  std::fflush(stdout);
}

void run_products(SpecTimer& timer, const ModelShapes& model) {
  fmt::print("\n| {} product, TFLOP/s | bf16 | one scale | blocks of 128 | of 32, as bf16 |\n",
             model.name);
  fmt::print("| --- | --- | --- | --- | --- |\n");
  std::vector<double> total_ns;
  for (const Layer& layer : {Layer{"qkv", model.width, model.qkv},
                             {"out", model.width, model.width},
                             {"gate and up", model.width, 2 * model.ffn},
                             {"down", model.ffn, model.width}}) {
    for (const Product& product : products_of(layer)) {
      run_product(timer, layer, product, total_ns);
    }
  }
  fmt::print("| all, ms |");
  for (const double ns : total_ns) {
    fmt::print(" {:.2f} |", ns / 1e6);
  }
  fmt::print("\n");
}

// ---- experts

struct ExpertShapes {
  std::string name;
  int64_t experts;
  int64_t per_token;
  int64_t rows;
  int64_t width;
  int64_t ffn;

  OperandSpec offsets() const { return in(DType::kI32, {experts + 1}); }
};
const ExpertShapes kExperts[] = {{"qwen3-30b-a3b", 128, 8, 131072, 2048, 768},
                                 {"mixtral-8x7b", 8, 2, 32768, 4096, 14336}};

OpSpec quantize_grouped_spec(const ExpertShapes& model, int64_t columns) {
  const Shape x{model.rows, columns};
  const Shape column{columns, GroupedColumns::width(model.rows, model.experts)};
  const ScaleLayout scales = QuantizeGroupedAttributes::scales();
  return {"quantize_grouped",
          to_attributes(QuantizeGroupedAttributes{}),
          {in(kBF16, x), model.offsets(), out(kE4M3, x), out(kF32, scales.shape(x)),
           out(kE4M3, column), out(kF32, scales.shape(column))}};
}

OpSpec quantize_gathered_spec(const ExpertShapes& model) {
  const int64_t tokens = model.rows / model.per_token;
  const Shape rows{model.rows, model.width};
  return {"quantize_gathered",
          to_attributes(QuantizeGatheredAttributes{}),
          {in(kBF16, {tokens, model.width}), in(DType::kI32, {model.rows}),
           in(DType::kI32, {tokens, model.per_token}), out(kE4M3, rows),
           out(kF32, scales_beside_rows(rows))}};
}

OpSpec transpose_grouped_spec(const ExpertShapes& model) {
  const Shape rows{model.rows, model.width};
  const Shape column{model.width, GroupedColumns::width(model.rows, model.experts)};
  const ScaleLayout scales = QuantizeGroupedAttributes::scales();
  return {"transpose_grouped",
          to_attributes(TransposeGroupedAttributes{}),
          {in(kE4M3, rows), in(kF32, scales_beside_rows(rows)), model.offsets(),
           out(kF32, scales.shape(rows)), out(kE4M3, column), out(kF32, scales.shape(column))}};
}

/// The products of one matrix of all experts, [experts out, in], in bf16 and with scales.
struct ExpertProduct {
  std::string name;
  OpSpec bf16;
  OpSpec scaled;
};

std::vector<ExpertProduct> products_of(const ExpertShapes& model, const Layer& layer) {
  const Shape x{model.rows, layer.in};
  const Shape y{model.rows, layer.out};
  const Shape w{model.experts * layer.out, layer.in};
  const int64_t width = GroupedColumns::width(model.rows, model.experts);
  const auto scaled = [&](const OpDefinition& op, std::vector<Attribute> attributes, const Shape& a,
                          const Shape& b, bool b_is_weight, const OperandSpec& result) {
    OpSpec spec{std::string(op.name), std::move(attributes), {}};
    append_factor(spec, a, {.block = 128});
    append_factor(spec, b, {.block = 128, .square = b_is_weight});
    spec.operands.push_back(model.offsets());
    spec.operands.push_back(result);
    return spec;
  };
  const std::vector<Attribute> none = to_attributes(ScaledGroupedLinearAttributes{});
  return {
      {"forward",
       {"grouped_linear", {}, {in(kBF16, x), in(kBF16, w), model.offsets(), out(kBF16, y)}},
       scaled(kScaledGroupedLinearOp, none, x, w, true, out(kBF16, y))},
      {"dgrad",
       {"grouped_linear_dgrad", {}, {in(kBF16, y), in(kBF16, w), model.offsets(), out(kBF16, x)}},
       scaled(kScaledGroupedLinearDgradOp, none, y, {w[1], w[0]}, true, out(kBF16, x))},
      {"wgrad",
       {"grouped_linear_wgrad",
        to_attributes(GroupedWgradAttributes{}),
        {in(kBF16, x), in(kBF16, y), model.offsets(), in_out(kF32, w)}},
       scaled(kScaledGroupedLinearWgradOp,
              to_attributes(ScaledGroupedWgradAttributes{.rows = model.rows}), {layer.in, width},
              {layer.out, width}, false, in_out(kF32, w))}};
}

void run_experts(SpecTimer& timer, const ExpertShapes& model) {
  fmt::print(
      "\n| {} experts, {} x | form | us | GB/s | copy of as many bytes, GB/s | of the copy |\n",
      model.experts, model.name);
  fmt::print("| --- | --- | --- | --- | --- | --- |\n");
  for (const int64_t columns : {model.width, 2 * model.ffn, model.ffn}) {
    print_form(timer, {model.rows, columns}, "rows of experts, row + column",
               quantize_grouped_spec(model, columns));
  }
  const Shape sent{model.rows, model.width};
  print_form(timer, sent, "rows that travel, gathered", quantize_gathered_spec(model));
  print_form(timer, sent, "columns of rows that came", transpose_grouped_spec(model));
  fmt::print("\n| {} product, TFLOP/s | bf16 | blocks of 128 |\n| --- | --- | --- |\n", model.name);
  for (const Layer& layer :
       {Layer{"fc1", model.width, 2 * model.ffn}, Layer{"fc2", model.ffn, model.width}}) {
    for (const ExpertProduct& product : products_of(model, layer)) {
      const double flops = spec_cost(product.bf16).flops;
      fmt::print("| {} {} | {:.0f} | {:.0f} |\n", layer.name, product.name,
                 flops / timer.steady_ns(product.bf16) / 1e3,
                 flops / timer.steady_ns(product.scaled) / 1e3);
      std::fflush(stdout);
    }
  }
}

void run(std::string cache_folder, const std::string& part) {
  CudaContext context(0, std::move(cache_folder));
  SpecTimer timer(context, /*vocabulary=*/1);
  fmt::print("{} tokens, cuBLASLt {}\n", kTokens, cublasLtGetVersion());
  for (const ModelShapes& model : kModels) {
    if (model.name.find(part) != std::string::npos) {
      run_forms(timer, model);
      run_products(timer, model);
    }
  }
  for (const ExpertShapes& model : kExperts) {
    if (model.name.find(part) != std::string::npos) {
      run_experts(timer, model);
    }
  }
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  try {
    braid::run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
    return 0;
  } catch (const braid::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
