// What the CPU executor costs beside its kernels: steps of the GPT-2-shaped model of
// bench/end_to_end, once with real kernels and once with kernels that do nothing. The second is all
// overhead: threads, events, dispatch.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "backends/cpu/cpu_executor.h"
#include "parallel/step_program.h"
#include "plan/run_plan.h"

namespace {

using braid::CpuExecutor;

constexpr int64_t kMicrobatch = 8;
constexpr int64_t kSequence = 256;

braid::ModelSpec gpt2_384() {
  return {.style = braid::kGpt2Style,
          .layers = 12,
          .width = 384,
          .heads = 6,
          .kv_heads = 6,
          .head_size = 64,
          .ffn = 1536,
          .vocabulary = 4096,
          .max_positions = kSequence,
          .tied_embeddings = true,
          .qkv_bias = true};
}

braid::RankPlan plan() {
  const braid::ModelSpec model = gpt2_384();
  const braid::ParameterLayout layout =
      braid::make_parameter_layout(braid::model_parameters(model));
  std::vector<braid::Program> programs;
  programs.push_back(
      braid::build_train_program(model, layout, braid::Mesh(braid::MeshSizes{}), 0,
                                 {.microbatch = kMicrobatch, .sequence = kSequence}));
  return braid::plan_programs(std::move(programs));
}

/// Random weights, tokens and labels: zeros would be faster than real data.
void fill(CpuExecutor& executor, const braid::Program& program) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  for (const braid::Buffer& buffer : program.buffers) {
    if (buffer.role == braid::BufferRole::kParam) {
      std::vector<float> values(static_cast<size_t>(buffer.num_elems()));
      std::generate(values.begin(), values.end(), [&] { return normal(random); });
      executor.write(buffer.name, 0, std::as_bytes(std::span(values)));
    } else if (buffer.name == "tokens" || buffer.name == "labels") {
      std::vector<int32_t> ids(static_cast<size_t>(buffer.num_elems()));
      std::generate(ids.begin(), ids.end(), [&] { return static_cast<int32_t>(random() % 4096); });
      executor.write(buffer.name, 0, std::as_bytes(std::span(ids)));
    }
  }
  const float loss_scale = 1.0f / static_cast<float>(kMicrobatch * kSequence);
  executor.write("loss_scale", 0, std::as_bytes(std::span(&loss_scale, 1)));
  const std::vector<float> scalars{1e-4f, 0.1f, 0.05f};
  executor.write("optimizer_scalars", 0, std::as_bytes(std::span(scalars)));
}

double median_ms(CpuExecutor& executor, int steps) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (int step = -2; step < steps; ++step) {
    const Clock::time_point begin = Clock::now();
    executor.run(0);
    if (step >= 0) {
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    }
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

}  // namespace

int main() {
  const int workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const braid::RankPlan rank = plan();
  CpuExecutor real(rank.programs, rank.memory, {.num_workers = workers});
  fill(real, rank.programs.front());
  CpuExecutor empty(rank.programs, rank.memory,
                    {.num_workers = workers, .make_kernel = [](const braid::OpSpec&, int) {
                       return braid::CpuKernel{.run = [](const braid::KernelArgs&) {}};
                     }});
  const double real_ms = median_ms(real, 10);
  const double empty_ms = median_ms(empty, 1000);
  fmt::print("tasks per step {}, workers {}\n", rank.programs.front().tasks.size(), workers);
  fmt::print("step with kernels    {:10.3f} ms (median of 10)\n", real_ms);
  fmt::print("step without kernels {:10.3f} ms (median of 1000)\n", empty_ms);
  fmt::print("executor overhead    {:10.4f} % of the step\n", 100.0 * empty_ms / real_ms);
  return 0;
}
