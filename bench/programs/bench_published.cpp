// Simulated steps of runs whose step times NVIDIA has published (DGX H100, bf16:
// NVIDIA/dgxc-benchmarking, releases 25.02 to 25.08), with the analytic cost model: nothing here
// was fitted to them.
//   braid_bench_published [part of a name]
// Nemotron-4 has squared ReLU where we have GELU in an MLP of the same two matrices. Distributed
// optimizer, gradients reduced in bf16, as in those recipes.

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <exception>
#include <string>
#include <string_view>

#include "config/validate.h"
#include "plan/simulated_run.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

struct Row {
  std::string_view name;
  ModelConfig model;
  int64_t ranks;
  std::array<int64_t, 4> layout;  // tensor, pipeline, context, virtual stages
  int64_t global_batch;
  int64_t sequence;
  double published_s;
};

ModelConfig gpt(int64_t layers, int64_t width, int64_t heads, int64_t kv_heads,
                int64_t vocabulary) {
  return {.family = "gpt2",
          .layers = layers,
          .width = width,
          .heads = heads,
          .kv_heads = kv_heads,
          .ffn = 4 * width,
          .vocabulary = vocabulary};
}

std::array<Row, 11> rows() {
  ModelConfig proxy{.preset = "llama-405b"};
  proxy.layers = 8;
  const ModelConfig gpt3 = gpt(96, 12288, 96, 96, 51200);
  return {{{"llama-8b", {.preset = "llama-8b"}, 8, {1, 1, 2, 1}, 128, 8192, 12.27},
           {"llama-8b", {.preset = "llama-8b"}, 128, {1, 1, 2, 1}, 2048, 8192, 12.33},
           {"llama-70b", {.preset = "llama-70b"}, 64, {4, 4, 2, 5}, 128, 8192, 14.66},
           {"llama-70b", {.preset = "llama-70b"}, 2048, {4, 4, 2, 5}, 4096, 8192, 14.66},
           {"llama-405b", {.preset = "llama-405b"}, 512, {8, 8, 2, 8}, 256, 8192, 19.78},
           {"llama-405b", {.preset = "llama-405b"}, 2048, {8, 8, 2, 8}, 1024, 8192, 19.87},
           {"llama-405b, 8 layers", proxy, 32, {8, 1, 2, 1}, 64, 8192, 5.40},
           {"gpt3-175b", gpt3, 128, {4, 8, 1, 6}, 256, 2048, 8.309},
           {"gpt3-175b", gpt3, 2048, {4, 8, 1, 6}, 4096, 2048, 8.49},
           {"nemotron4-15b", gpt(32, 6144, 48, 8, 256000), 16, {2, 1, 1, 1}, 64, 4096, 2.746},
           {"nemotron4-340b", gpt(96, 18432, 96, 8, 256000), 256, {8, 8, 1, 12}, 64, 4096, 4.606}}};
}

RunConfig config_of(const Row& row) {
  const auto [tensor, pipeline, context, virtual_stages] = row.layout;
  RunConfig config;
  config.model = row.model;
  config.train.sequence = row.sequence;
  config.train.global_batch = row.global_batch;
  config.train.dtype = "bfloat16";
  config.parallel.ranks = row.ranks;
  config.parallel.tensor = tensor;
  config.parallel.sequence_parallel = tensor > 1;
  config.parallel.pipeline = pipeline;
  config.parallel.context = context;
  config.parallel.virtual_stages = virtual_stages;
  config.parallel.schedule = virtual_stages > 1 ? "interleaved" : "1f1b";
  config.parallel.account_for_embedding = config.parallel.account_for_loss =
      row.model.preset == "llama-405b" && pipeline > 1;  // 126 layers
  config.parallel.pipeline_layout = "even";              // as published
  config.parallel.shard = "optimizer";
  config.parallel.grad_reduce_dtype = "bfloat16";
  config.logging.run_folder = "unused";
  validate(config);
  return resolved(config);
}

void print_row(const Row& row) {
  const RunConfig config = config_of(row);
  const auto model =
      make_analytic_model(make_cluster(*find_device("h100"), static_cast<int>(row.ranks)));
  const SimulatedRun run(resolve_run(config, 0), *model);
  const auto share = [&](double ns) {
    return 100.0 * ns / static_cast<double>(run.result().step_ns);
  };
  const double step_s = static_cast<double>(run.step_ns()) * 1e-9;
  fmt::print(
      "| {} | {} | {}-{}-{}-{} | {:.2f} | {:.2f} | {:+.1f}% | {:.1f}% | {:.1f}% | {:.1f}% |\n",
      row.name, row.ranks, row.layout[0], row.layout[1], row.layout[2], row.layout[3],
      row.published_s, step_s, 100.0 * (step_s / row.published_s - 1.0),
      share(run.means().compute_ns), share(run.means().all_exposed_ns),
      share(run.means().idle_ns()));
  std::fflush(stdout);
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  fmt::print(
      "| model | H100 | tp-pp-cp-vp | published, s | simulated, s | error | compute | exposed | "
      "idle |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const braid::Row& row : braid::rows()) {
    if (argc > 1 && row.name.find(argv[1]) == std::string_view::npos) {
      continue;
    }
    try {
      braid::print_row(row);
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}: {}\n", row.name, error.what());
      return 1;
    }
  }
  return 0;
}
