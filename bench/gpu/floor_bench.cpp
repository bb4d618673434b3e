// How fast a step could be on this GPU, and where to work next: every distinct kernel of a run's
// training program, timed alone, against its floor.
//
//   floor: matrix products and attention at the rate that their libraries reach alone, on the same
//   machine in the same run; everything else at the bytes that must cross memory over the bandwidth
//   of a large copy. The sum over the tasks of the program is the floor of the step. Of several
//   ranks it is that of the one with the most to compute, as if communication took no time.
//
//   braid_bench_floor run.toml [--set key=value ...] [--json FILE] [--step-ms MEASURED]
//   [--describe]
//
// --describe needs no GPU: it only prints the model, the step and its planned memory, as JSON.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/make_executor.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/text.h"
#include "config/load.h"
#include "config/validate.h"
#include "data/tokenizer.h"
#include "model/blocks/registry.h"
#include "model/families.h"
#include "ops/op.h"
#include "ops/rope_scaling.h"
#include "plan/run_plan.h"
#include "runtime/device.h"
#include "sim/op_family.h"
#include "spec_timer.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kCopyBytes = int64_t{2} << 30;
constexpr size_t kMaxRows = 30;  // of the printed table

struct Arguments {
  std::string run_file;
  std::vector<std::string> overrides;
  std::string json_path;
  std::optional<double> step_ms;
  bool describe = false;
};

constexpr const char* kUsage =
    "usage: braid_bench_floor run.toml [--set key=value ...] [--json FILE] [--step-ms MEASURED] "
    "[--describe]";

Arguments parse_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto next = [&]() -> std::string {
      if (++i == argc) {
        throw_config_error("{} needs a value; {}", word, kUsage);
      }
      return argv[i];
    };
    if (word == "--set") {
      arguments.overrides.push_back(next());
    } else if (word == "--json") {
      arguments.json_path = next();
    } else if (word == "--step-ms") {
      arguments.step_ms = std::stod(next());
    } else if (word == "--describe") {
      arguments.describe = true;
    } else if (word.starts_with("-") || !arguments.run_file.empty()) {
      throw_config_error("unknown argument {}; {}", word, kUsage);
    } else {
      arguments.run_file = word;
    }
  }
  if (arguments.run_file.empty()) {
    throw_config_error("{}", kUsage);
  }
  return arguments;
}

struct Case {
  RunConfig config;
  RunPlan plan;
};

Case load_case(const Arguments& arguments) {
  RunConfig config = load_config(arguments.run_file, arguments.overrides);
  validate(config);
  config = resolved(std::move(config));
  const int64_t ids = load_tokenizer(config.data.tokenizer)->vocabulary_size();
  RunPlan plan = plan_run(resolve_run(config, ids));
  return {std::move(config), std::move(plan)};
}

/// By pipeline stage, in the order of the model.
std::vector<int64_t> layers_of_stages(const RunPlan& plan) {
  std::vector<int64_t> layers;
  for (const StageSlice& stage : plan.run.parallel.stages) {
    layers.push_back(stage.num_layers);
  }
  return layers;
}

Json describe_layout(const RunConfig& config, const RunPlan& plan) {
  const ParallelConfig& parallel = config.parallel;
  return {{"ranks", parallel.ranks},
          {"data", parallel.data},
          {"tensor", parallel.tensor},
          {"context", parallel.context},
          {"pipeline", parallel.pipeline},
          {"virtual_stages", parallel.virtual_stages},
          {"stage_layers", layers_of_stages(plan)},
          {"sequence_parallel", parallel.sequence_parallel},
          {"shard", parallel.shard},
          {"recompute", config.memory.recompute}};
}

/// Of the rank that needs most, one of each stage being planned.
const MemoryPlan& largest_memory(const RunPlan& plan) {
  const auto less = [](const auto& a, const auto& b) {
    return a.memory.peak_bytes() < b.memory.peak_bytes();
  };
  return std::max_element(plan.ranks.begin(), plan.ranks.end(), less)->memory;
}

/// Microbatches of a rank as the run file has them. braid may run each as two halves; the other
/// side of a comparison does not.
int64_t written_microbatches(const Case& c) {
  return c.plan.run.num_microbatches * c.plan.run.microbatch_sequences / c.config.train.microbatch;
}

/// Sizes of latent attention; null for a model without.
Json describe_latents(const ModelSpec& model) {
  if (!model.layers.has(kMlaBlock)) {
    return nullptr;
  }
  return {{"q_rank", model.q_lora_rank},     {"kv_rank", model.kv_lora_rank},
          {"plain", model.qk_nope_head_dim}, {"rotated", model.qk_rope_head_dim},
          {"value", model.v_head_dim},       {"score_scale", rope_score_scale(model.rope_scaling)}};
}

/// Blocks of each layer, as in model.pattern.
Json describe_layers(const ModelSpec& model) {
  Json names = Json::array();
  for (const LayerSpec& layer : model.layers) {
    names.push_back(layer_name(layer));
  }
  return names;
}

/// Sizes of Mamba-2 layers; null for a model without.
Json describe_states(const ModelSpec& model) {
  if (!model.layers.has(kMambaBlock)) {
    return nullptr;
  }
  return {{"heads", model.mamba_num_heads}, {"head_size", model.mamba_head_dim},
          {"state", model.ssm_state_size},  {"groups", model.mamba_n_groups},
          {"taps", model.conv_kernel},      {"chunk", model.mamba_chunk_size},
          {"dt_min", model.mamba_dt_min},   {"dt_max", model.mamba_dt_max}};
}

/// Null for a model without rotary positions.
Json describe_frequencies(const ModelSpec& model) {
  if (model.style.positions != PositionKind::kRope) {
    return nullptr;
  }
  const int64_t rotated = model.layers.has(kMlaBlock) ? model.qk_rope_head_dim : model.head_size;
  return rope_frequencies(rotated, model.rope_theta, model.rope_scaling);
}

Json describe(const Case& c) {
  const ModelSpec& model = c.plan.run.model;
  const MemoryPlan& memory = largest_memory(c.plan);
  return {{"family", family_name(model.style)},
          {"layers", model.layers.size()},
          {"pattern", describe_layers(model)},
          {"width", model.width},
          {"heads", model.heads},
          {"kv_heads", model.kv_heads},
          {"head_size", model.head_size},
          {"latents", describe_latents(model)},
          {"states", describe_states(model)},
          {"ffn", model.ffn},
          {"vocabulary", model.vocabulary},
          {"padded_vocabulary", model.padded_vocabulary()},
          {"max_positions", model.max_positions},
          {"tied_embeddings", model.tied_embeddings},
          {"qkv_bias", model.qkv_bias},
          {"rope_theta", model.rope_theta},
          {"rope_frequencies", describe_frequencies(model)},
          {"rope_amplitude", rope_amplitude(model.rope_scaling)},
          {"norm_epsilon", model.norm_epsilon},
          {"init_std", model.init_std},
          {"parameters", num_parameters(model)},
          {"sequence", c.config.train.sequence},
          {"microbatch", c.config.train.microbatch},
          {"microbatches", written_microbatches(c)},
          {"global_batch", c.config.train.global_batch},
          {"steps", c.config.train.steps},
          {"seed", c.config.train.seed},
          {"data_seed", c.config.data.seed},
          {"data", c.config.data.train},
          {"split", c.config.data.split},
          {"eval_interval", c.config.eval.interval},
          {"eval_batches", c.config.eval.batches},
          {"learning_rate", c.config.optimizer.learning_rate},
          {"min_learning_rate", c.config.optimizer.min_learning_rate},
          {"schedule", c.config.optimizer.schedule},
          {"warmup_steps", c.config.optimizer.warmup_steps},
          {"decay_steps", c.config.optimizer.decay_steps},
          {"beta1", c.config.optimizer.beta1},
          {"beta2", c.config.optimizer.beta2},
          {"epsilon", c.config.optimizer.epsilon},
          {"weight_decay", c.config.optimizer.weight_decay},
          {"clip_norm", c.config.optimizer.clip_norm},
          {"dtype", c.config.train.dtype},
          {"flops_per_token", train_flops_per_token(model, c.config.train.sequence)},
          {"planned_bytes", memory.peak_bytes()},
          {"persistent_bytes", memory.persistent_bytes},
          {"step_bytes", memory.step_bytes},
          {"layout", describe_layout(c.config, c.plan)}};
}

/// All tasks of one spec.
struct Line {
  const OpSpec* spec = nullptr;
  int64_t count = 0;
  OpCost cost;                             // of one task
  SpecTiming timing;                       // of one task
  std::optional<SpecTiming> with_atomics;  // attention's backward if it need not be repeatable
  double floor_ns = 0;                     // of one task
  double floor_atomics_ns = 0;             // the same, with the faster backward of attention

  double alone_ms() const { return timing.ns * static_cast<double>(count) * 1e-6; }
  double floor_ms() const { return floor_ns * static_cast<double>(count) * 1e-6; }
  double floor_atomics_ms() const { return floor_atomics_ns * static_cast<double>(count) * 1e-6; }
  double bytes() const { return cost.bytes_read + cost.bytes_written; }
};

/// Of all compute tasks.
double compute_flops(const Program& program) {
  double flops = 0;
  for (const Task& task : program.tasks) {
    const OpSpec& spec = program.specs[task.spec];
    if (computes_on_device(family_of(spec))) {
      flops += spec_cost(spec).flops;
    }
  }
  return flops;
}

/// Of the rank with the most to compute: no step is faster than that one.
const Program& busiest_program(const RunPlan& plan) {
  const auto less = [](const auto& a, const auto& b) {
    return compute_flops(a.programs[kTrainProgram]) < compute_flops(b.programs[kTrainProgram]);
  };
  return std::max_element(plan.ranks.begin(), plan.ranks.end(), less)->programs[kTrainProgram];
}

/// Compute specs of the program in order of first use, with the number of their tasks.
std::vector<Line> lines_of(const Program& program) {
  std::map<SpecId, int64_t> counts;
  for (const Task& task : program.tasks) {
    ++counts[task.spec];
  }
  std::vector<Line> lines;
  for (const auto& [id, count] : counts) {
    const OpSpec& spec = program.specs[id];
    if (computes_on_device(family_of(spec))) {
      Line line;
      line.spec = &spec;
      line.count = count;
      line.cost = spec_cost(spec);
      lines.push_back(line);
    }
  }
  return lines;
}

/// At the rate of a library: its time alone is the floor.
bool is_library_op(const OpSpec& spec) {
  return family_of(spec) == OpFamily::kGemm || family_of(spec) == OpFamily::kAttention;
}

void measure(Line& line, SpecTimer& timer, CudaContext& context, double bytes_per_s) {
  const OpSpec& spec = *line.spec;
  line.timing = timer.time(spec);
  line.floor_ns = is_library_op(spec) ? line.timing.ns : line.bytes() / bytes_per_s * 1e9;
  line.floor_atomics_ns = line.floor_ns;
  if (spec.op == "attention_backward") {
    line.with_atomics = timer.time(
        spec, make_cuda_attention_backward(
                  spec, context, {.repeatable = false, .method = AttentionMethod::kCudnn}));
  } else if (spec.op == "attention_step_backward") {
    line.with_atomics =
        timer.time(spec, make_cuda_attention_step_backward(spec, context, {.repeatable = false}));
  }
  if (line.with_atomics) {
    line.floor_atomics_ns = std::min(line.floor_ns, line.with_atomics->ns);
  }
}

std::string shapes_of(const OpSpec& spec) {
  std::vector<std::string> shapes;
  for (const OperandSpec& operand : spec.operands) {
    const std::string access = operand.access == Access::kReadWrite ? "rw " : "";
    shapes.push_back(
        fmt::format("{}{}{}", access, dtype_name(operand.dtype), to_string(operand.shape)));
  }
  return join(shapes, " ");
}

struct Totals {
  double alone_ms = 0;
  double floor_ms = 0;
  double floor_atomics_ms = 0;
  size_t scratch_bytes = 0;
};

Totals totals_of(const std::vector<Line>& lines) {
  Totals totals;
  for (const Line& line : lines) {
    totals.alone_ms += line.alone_ms();
    totals.floor_ms += line.floor_ms();
    totals.floor_atomics_ms += line.floor_atomics_ms();
    totals.scratch_bytes = std::max(totals.scratch_bytes, line.timing.scratch_bytes);
  }
  return totals;
}

Json to_json(const Line& line) {
  Json json = {{"op", line.spec->op},          {"operands", shapes_of(*line.spec)},
               {"count", line.count},          {"flops", line.cost.flops},
               {"bytes", line.bytes()},        {"us", line.timing.ns * 1e-3},
               {"spread", line.timing.spread}, {"scratch_bytes", line.timing.scratch_bytes},
               {"alone_ms", line.alone_ms()},  {"floor_ms", line.floor_ms()}};
  if (line.with_atomics) {
    json["atomics_us"] = line.with_atomics->ns * 1e-3;
  }
  return json;
}

Json to_json(const Case& c, const std::string& gpu, double bytes_per_s,
             const std::vector<Line>& lines) {
  const Totals totals = totals_of(lines);
  Json json = {{"kind", "floor"},
               {"case", describe(c)},
               {"gpu", gpu},
               {"copy_bytes_per_s", bytes_per_s},
               {"alone_ms", totals.alone_ms},
               {"floor_ms", totals.floor_ms},
               {"floor_atomics_ms", totals.floor_atomics_ms},
               {"scratch_bytes", totals.scratch_bytes},
               {"ops", Json::array()}};
  for (const Line& line : lines) {
    json["ops"].push_back(to_json(line));
  }
  return json;
}

void print_lines(std::vector<Line> lines) {
  std::sort(lines.begin(), lines.end(),
            [](const Line& a, const Line& b) { return a.alone_ms() > b.alone_ms(); });
  fmt::print("| op | operands | tasks | us each | TFLOP/s | GB/s | ms alone | ms floor |\n");
  fmt::print("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (size_t i = 0; i < std::min(lines.size(), kMaxRows); ++i) {
    const Line& line = lines[i];
    fmt::print("| {} | {} | {} | {:.1f} | {:.0f} | {:.0f} | {:.2f} | {:.2f} |\n", line.spec->op,
               shapes_of(*line.spec), line.count, line.timing.ns * 1e-3,
               line.cost.flops / line.timing.ns * 1e-3, line.bytes() / line.timing.ns,
               line.alone_ms(), line.floor_ms());
    if (line.with_atomics) {
      fmt::print("| with atomics | | | {:.1f} | {:.0f} | | | {:.2f} |\n",
                 line.with_atomics->ns * 1e-3, line.cost.flops / line.with_atomics->ns * 1e-3,
                 line.floor_atomics_ms());
    }
  }
}

void print_totals(const Totals& totals, double bytes_per_s, std::optional<double> step_ms) {
  fmt::print("\ncopy {:.3f} TB/s read and written\n", bytes_per_s * 1e-12);
  fmt::print(
      "floor {:.2f} ms ({:.2f} ms with atomics in attention's backward), kernels alone "
      "{:.2f} ms, scratch {}\n",
      totals.floor_ms, totals.floor_atomics_ms, totals.alone_ms,
      format_bytes(static_cast<int64_t>(totals.scratch_bytes)));
  if (step_ms) {
    fmt::print("step {:.2f} ms: {:.1f}% of the floor reached\n", *step_ms,
               100 * totals.floor_ms / *step_ms);
  }
}

void measure_case(const Case& c, const Arguments& arguments) {
  const FoundGpus gpus = find_gpus();  // one is enough, however many ranks there are
  if (gpus.usable.empty()) {
    throw_config_error("floors are measured on a GPU; {}", gpus.why_none);
  }
  const DeviceInfo& gpu = gpus.usable.front();
  CudaContext context(gpu.device, user_cache_folder());
  SpecTimer timer(context, c.plan.run.model.vocabulary);
  const double bytes_per_s = timer.copy_bytes_per_s(kCopyBytes);
  std::vector<Line> lines = lines_of(busiest_program(c.plan));
  for (Line& line : lines) {
    measure(line, timer, context, bytes_per_s);
  }
  print_lines(lines);
  print_totals(totals_of(lines), bytes_per_s, arguments.step_ms);
  if (!arguments.json_path.empty()) {
    write_file_atomically(arguments.json_path,
                          to_json(c, gpu.name, bytes_per_s, lines).dump() + "\n");
  }
}

void run(const Arguments& arguments) {
  const Case c = load_case(arguments);
  if (arguments.describe) {
    fmt::print("{}\n", describe(c).dump());
  } else {
    measure_case(c, arguments);
  }
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  try {
    braid::run(braid::parse_arguments(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "braid_bench_floor: {}\n", error.what());
    return 1;
  }
}
