#include "runtime/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "backends/cpu/cpu_executor.h"
#include "base/errors.h"
#include "base/philox.h"
#include "parallel/step_program.h"
#include "runtime/run_plan.h"

namespace braid {
namespace {

constexpr int64_t kShortestProgram = 32;

std::string prefix_of(int64_t length) {
  return fmt::format("generate_{}", length);
}

double uniform_at(uint64_t seed, uint64_t position) {
  const auto words =
      philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>(words[0]) * 0x1p-32;
}

}  // namespace

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                     double uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit_of = [&](int32_t token) {
    const float logit = logits[static_cast<size_t>(token)];
    return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
  };
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logit_of(a);
    const float y = logit_of(b);
    return x > y || (x == y && a < b);
  };
  const size_t count = options.temperature == 0.0 ? 1
                       : options.top_k == 0
                           ? order.size()
                           : std::min(order.size(), static_cast<size_t>(options.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    likelier);
  if (count == 1) {
    return order.front();
  }
  const double highest = logit_of(order.front());
  std::vector<double> weights;
  for (size_t i = 0; i < count; ++i) {
    weights.push_back(std::exp((logit_of(order[i]) - highest) / options.temperature));
  }
  double remaining = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < count; ++i) {
    remaining -= weights[i];
    if (remaining < 0) {
      return order[i];
    }
  }
  return order[count - 1];  // rounding left a little over
}

Generator::Generator(const ModelSpec& model, const ModelState& state, int64_t max_context,
                     int threads)
    : model_(model) {
  for (int64_t length = kShortestProgram; length < max_context; length *= 2) {
    lengths_.push_back(length);
  }
  lengths_.push_back(max_context);
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  std::vector<Program> programs;
  for (const int64_t length : lengths_) {
    programs.push_back(build_eval_program(model, layout, Mesh(MeshSizes{}), 0,
                                          {.microbatch = 1,
                                           .sequence = length,
                                           .end = ForwardEnd::kLogits,
                                           .prefix = prefix_of(length)}));
  }
  RankPlan plan = plan_rank(std::move(programs), {});
  executor_ = std::make_unique<CpuExecutor>(std::move(plan.programs), std::move(plan.memory),
                                            CpuExecutorOptions{.num_workers = threads});
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    executor_->write(param_buffer_name(layout.units[unit]), 0,
                     std::as_bytes(std::span(state.weights[unit])));
  }
}

Generator::~Generator() = default;

std::vector<float> Generator::next_logits(std::span<const int32_t> context) {
  const auto longest = static_cast<size_t>(lengths_.back());
  context = context.last(std::min(context.size(), longest));
  const auto program =
      std::lower_bound(lengths_.begin(), lengths_.end(), static_cast<int64_t>(context.size()));
  std::vector<int32_t> tokens(static_cast<size_t>(*program),
                              0);  // attention is causal: padding behind changes nothing
  std::copy(context.begin(), context.end(), tokens.begin());
  const std::string prefix = prefix_of(*program);
  executor_->write(prefix + ".tokens", 0, std::as_bytes(std::span(tokens)));
  executor_->run(static_cast<size_t>(program - lengths_.begin()));
  std::vector<float> logits(static_cast<size_t>(model_.vocabulary));
  const int64_t row_elems = static_cast<int64_t>(context.size() - 1) * model_.padded_vocabulary();
  executor_->read(prefix + ".logits", row_elems * static_cast<int64_t>(sizeof(float)),
                  std::as_writable_bytes(std::span(logits)));
  return logits;
}

std::vector<int32_t> Generator::generate(std::vector<int32_t> context, int64_t max_tokens,
                                         std::optional<int32_t> end, const SamplingOptions& options,
                                         const std::function<void(int32_t)>& on_token) {
  check(!context.empty(), "generation needs at least one token to start from");
  for (const int32_t token : context) {
    if (token < 0 || token >= model_.vocabulary) {
      throw_config_error("prompt token {}: the model's vocabulary has {} ids", token,
                         model_.vocabulary);
    }
  }
  for (int64_t i = 0; i < max_tokens; ++i) {
    const int32_t token = sample_token(next_logits(context), options,
                                       uniform_at(options.seed, static_cast<uint64_t>(i)));
    if (end && token == *end) {
      break;
    }
    context.push_back(token);
    on_token(token);
  }
  return context;
}

}  // namespace braid
