#include "calibrate/calibration_specs.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "config/choices.h"
#include "config/validate.h"
#include "ops/attention.h"
#include "ops/attributes.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/linear_swiglu.h"
#include "ops/operand_checker.h"
#include "plan/run_spec.h"
#include "sim/op_family.h"

namespace braid {
namespace {

OperandSpec read(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kRead, .shape = shape};
}
OperandSpec write(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kWrite, .shape = shape};
}

/// One layer of a model, one microbatch: every op of a step at its shapes.
RunConfig one_layer(DType dtype, int64_t sequence, int64_t microbatch) {
  RunConfig config;
  config.model.layers = 1;
  config.train.dtype = choice_name(dtype);
  config.train.sequence = sequence;
  config.train.microbatch = microbatch;
  config.train.global_batch = microbatch;
  return config;
}

RunConfig preset(std::string name, DType dtype, int64_t sequence, int64_t microbatch) {
  RunConfig config = one_layer(dtype, sequence, microbatch);
  config.model.preset = std::move(name);
  return config;
}

struct SmallModel {
  std::string family;
  int64_t width;
  int64_t heads;
  int64_t vocabulary;
  int64_t sequence;
  int64_t microbatch;
};

RunConfig small_model(const SmallModel& model, DType dtype) {
  RunConfig config = one_layer(dtype, model.sequence, model.microbatch);
  config.model.family = model.family;
  config.model.width = model.width;
  config.model.heads = model.heads;
  config.model.vocabulary = model.vocabulary;
  return config;
}

void add_products(std::vector<OpSpec>& specs, int64_t n, int64_t m, int64_t k, DType dtype) {
  specs.push_back({std::string(kLinearOp.name),
                   to_attributes(LinearAttributes{}),
                   {read(dtype, {n, k}), read(dtype, {m, k}), write(dtype, {n, m})}});
  specs.push_back({std::string(kLinearDgradOp.name),
                   to_attributes(LinearDgradAttributes{}),
                   {read(dtype, {n, m}), read(dtype, {m, k}), write(dtype, {n, k})}});
  specs.push_back(
      {std::string(kLinearWgradOp.name),
       to_attributes(LinearWgradAttributes{.accumulate = false}),
       {read(dtype, {n, k}), read(dtype, {n, m}), write(accumulator_dtype(dtype), {m, k})}});
}

/// Heads of 2048 features, four query heads to a key head.
void add_attention(std::vector<OpSpec>& specs, int64_t sequences, int64_t sequence,
                   int64_t head_size, DType dtype) {
  const int64_t heads = std::max<int64_t>(4, 2048 / head_size);
  const AttentionAttributes attributes{.heads = heads,
                                       .kv_heads = heads / 4,
                                       .head_size = head_size,
                                       .sequence = sequence,
                                       .scale = 0.125};
  const int64_t rows = sequences * sequence;
  const Shape qkv{rows, (heads + heads / 2) * head_size};
  const Shape out{rows, heads * head_size};
  const Shape lse{sequences, heads, sequence};
  const DType wide = accumulator_dtype(dtype);
  specs.push_back({std::string(kAttentionOp.name),
                   to_attributes(attributes),
                   {read(dtype, qkv), write(dtype, out), write(wide, lse)}});
  specs.push_back(
      {std::string(kAttentionBackwardOp.name),
       to_attributes(attributes),
       {read(dtype, qkv), read(dtype, out), read(wide, lse), read(dtype, out), write(dtype, qkv)}});
}

// Few products in addition to those of models: a GPU takes seconds to choose the kernel of a large
// one, and the cost of shapes between them is interpolated relative to a model of tiles
// (docs/profiles.md). Sequences on both sides of the length at which attention changes its kernels.
CalibrationGrid gpu_grid(DType dtype) {
  return {.models = {preset("llama-1b", dtype, 8192, 2), preset("llama-8b", dtype, 8192, 1),
                     preset("qwen2.5-7b", dtype, 1024, 8), preset("gpt2-124m", dtype, 1024, 16),
                     preset("llama-1b", dtype, 1024, 1)},
          .tokens = {1024, 8192},
          .widths = {1024, 8192},
          .sequences = {1024, 2048, 4096, 16384},
          .head_sizes = {64, 128},
          .attention_tokens = 16384,
          .copy_bytes = {1 << 20, 16 << 20, 256 << 20, 1 << 30},
          .host_copy_bytes = {64 << 10, 1 << 20, 16 << 20, 256 << 20}};
}

CalibrationGrid cpu_grid(DType dtype) {
  return {.models = {small_model({"llama", 256, 4, 2048, 256, 4}, dtype),
                     small_model({"llama", 512, 8, 8192, 512, 2}, dtype),
                     small_model({"gpt2", 384, 6, 4096, 256, 8}, dtype),
                     small_model({"gpt2", 768, 12, 8192, 512, 1}, dtype),
                     small_model({"llama", 64, 4, 512, 64, 4}, dtype)},
          .tokens = {128, 512, 2048},
          .widths = {128, 512, 2048},
          .sequences = {128, 512, 2048},
          .head_sizes = {32, 64},
          .attention_tokens = 512,
          .copy_bytes = {64 << 10, 1 << 20, 16 << 20, 128 << 20},
          .host_copy_bytes = {64 << 10, 1 << 20, 16 << 20}};
}

/// The specs of a program's tasks, each once.
std::vector<OpSpec> specs_of_tasks(const Program& program) {
  std::vector<bool> is_seen(program.specs.all().size());
  std::vector<OpSpec> specs;
  for (const Task& task : program.tasks) {
    if (!is_seen[task.spec.index()]) {
      is_seen[task.spec.index()] = true;
      specs.push_back(program.spec(task));
    }
  }
  return specs;
}

/// Adds a spec that takes time on a device; for a product with an activation function also both ops
/// alone: they are the price of shapes without a fused kernel.
void add_timed(std::vector<OpSpec>& specs, const OpSpec& spec) {
  if (!computes_on_device(family_of(spec))) {
    return;
  }
  specs.push_back(spec);
  if (is_fused_product(spec)) {
    const ProductAndActivation parts = unfused(spec);
    specs.push_back(parts.product);
    specs.push_back(parts.activation);
  }
}

}  // namespace

CalibrationGrid calibration_grid(GridSize size, DType dtype) {
  switch (size) {
    case GridSize::kGpu:
      return gpu_grid(dtype);
    case GridSize::kGpuQuick: {
      CalibrationGrid grid = gpu_grid(dtype);
      grid.models = {preset("llama-1b", dtype, 1024, 1)};
      return grid;
    }
    case GridSize::kCpu:
      return cpu_grid(dtype);
    case GridSize::kCpuQuick:
      return {.models = {small_model({"llama", 128, 2, 512, 128, 2}, dtype)},
              .tokens = {128, 1024},
              .widths = {128, 512},
              .sequences = {128},
              .head_sizes = {64},
              .attention_tokens = 256,
              .copy_bytes = {64 << 10, 8 << 20},
              .host_copy_bytes = {64 << 10, 4 << 20}};
  }
  return {};
}

CalibrationGrid copies_of(CalibrationGrid grid) {
  return {.copy_bytes = std::move(grid.copy_bytes),
          .host_copy_bytes = std::move(grid.host_copy_bytes)};
}

std::vector<OpSpec> distinct_specs(std::vector<OpSpec> specs) {
  struct Hash {
    size_t operator()(const OpSpec& spec) const { return hash_value(spec); }
  };
  std::unordered_set<OpSpec, Hash> seen;
  std::vector<OpSpec> distinct;
  for (OpSpec& spec : specs) {
    if (seen.insert(timing_key(spec)).second) {
      distinct.push_back(std::move(spec));
    }
  }
  return distinct;
}

std::vector<OpSpec> program_specs(const RunPlan& plan) {
  std::vector<OpSpec> specs;
  for (const RankPlan& rank : plan.ranks) {
    for (const Program& program : rank.programs) {
      for (const OpSpec& spec : specs_of_tasks(program)) {
        add_timed(specs, spec);
      }
    }
  }
  return distinct_specs(std::move(specs));
}

std::vector<OpSpec> grid_specs(const CalibrationGrid& grid, DType dtype) {
  std::vector<OpSpec> specs;
  for (const RunConfig& config : grid.models) {
    const std::vector<OpSpec> of_model = program_specs(plan_run(resolve_run(resolved(config), 0)));
    specs.insert(specs.end(), of_model.begin(), of_model.end());
  }
  for (const int64_t n : grid.tokens) {
    for (const int64_t m : grid.widths) {
      for (const int64_t k : grid.widths) {
        add_products(specs, n, m, k, dtype);
      }
    }
  }
  for (const int64_t sequence : grid.sequences) {
    for (const int64_t head_size : grid.head_sizes) {
      add_attention(specs, std::max<int64_t>(1, grid.attention_tokens / sequence), sequence,
                    head_size, dtype);
    }
  }
  for (const int64_t bytes : grid.copy_bytes) {
    const Shape shape{bytes / static_cast<int64_t>(dtype_bytes(dtype))};
    specs.push_back({std::string(kCopyOp.name), {}, {read(dtype, shape), write(dtype, shape)}});
  }
  return distinct_specs(std::move(specs));
}

}  // namespace braid
