#include "generate/generate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/finite_check.h"
#include "base/philox.h"
#include "base/text.h"
#include "base/worker_pool.h"
#include "parallel/step_program.h"
#include "plan/run_plan.h"
#include "runtime/host_needs.h"
#include "runtime/memory_check.h"
#include "state/state_transfer.h"

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

std::vector<int64_t> program_lengths(int64_t max_context) {
  std::vector<int64_t> lengths;
  for (int64_t length = kShortestProgram; length < max_context; length *= 2) {
    lengths.push_back(length);
  }
  lengths.push_back(max_context);
  return lengths;
}

DType compute_dtype(const Device& device) {
  return device.backend->dtypes.front();
}

RankPlan plan_lengths(const ModelSpec& model, const ParameterLayout& layout,
                      const std::vector<int64_t>& lengths, DType dtype) {
  std::vector<Program> programs;
  for (const int64_t length : lengths) {
    programs.push_back(build_eval_program(model, layout, Mesh(MeshSizes{}), 0,
                                          {.microbatch = 1,
                                           .sequence = length,
                                           .dtype = dtype,
                                           .end = ForwardEnd::kLogits,
                                           .prefix = prefix_of(length)}));
  }
  return plan_programs(std::move(programs));
}

MemoryUse use_of(const RankPlan& plan, const ParameterLayout& layout,
                 const GeneratorOptions& options) {
  const bool on_gpu = options.device.gpu.has_value();
  return {.needs = on_gpu ? rank_needs(*options.device.backend, plan, {})
                          : cpu_needs(plan, layout, options.threads),
          .owner = on_gpu ? "the " + options.device.gpu->name : "this machine",
          .kind = on_gpu ? "GPU memory" : "memory",
          .free_bytes = options.free_bytes.value_or(std::numeric_limits<int64_t>::max())};
}

/// The longest context that fits, with its bytes.
std::string fitting_context(int64_t longest, const ParameterLayout& layout, const ModelSpec& model,
                            const GeneratorOptions& options) {
  for (int64_t length = longest / 2; length >= 1; length /= 2) {
    const RankPlan plan =
        plan_lengths(model, layout, program_lengths(length), compute_dtype(options.device));
    const MemoryUse use = use_of(plan, layout, options);
    if (use.fits()) {
      return fmt::format("nearest valid setting: --context {} ({})", length,
                         format_bytes(use.needs.bytes()));
    }
  }
  return options.device.gpu ? "no shorter --context fits; give --device cpu"
                            : "no shorter --context fits";
}

std::unique_ptr<Executor> make_executor(RankPlan plan, const GeneratorOptions& options) {
  const Device& device = options.device;
  return device.backend->make_executor(std::move(plan.programs), std::move(plan.memory),
                                       {.device = device.gpu ? device.gpu->device : 0,
                                        .num_workers = options.threads,
                                        .cache_folder = options.cache_folder});
}

void check_logits(std::span<const float> logits, size_t num_tokens, DType dtype) {
  const std::optional<int64_t> bad = find_non_finite(
      reinterpret_cast<const std::byte*>(logits.data()), std::ssize(logits), DType::kF32);
  if (bad) {
    throw_data_error(
        "after {} tokens the model's logit of token {} is {}: its weights are no result of "
        "training, or too large for {}",
        num_tokens, *bad, logits[static_cast<size_t>(*bad)], dtype_name(dtype));
  }
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
  return order[count - 1];  // because of rounding
}

Generator::Generator(const ModelSpec& model, const StateSource& state, int64_t max_context,
                     const GeneratorOptions& options)
    : model_(model),
      lengths_(program_lengths(max_context)),
      logits_dtype_(compute_dtype(options.device)) {
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  RankPlan plan = plan_lengths(model, layout, lengths_, logits_dtype_);
  if (const MemoryUse use = use_of(plan, layout, options); !use.fits()) {
    throw_config_error("{}; {}", describe_shortage(use),
                       fitting_context(max_context, layout, model, options));
  }
  const Program any = plan.programs.front();  // all have the same weights
  executor_ = make_executor(std::move(plan), options);
  WorkerPool workers(options.threads);
  const StateMap map(layout, std::array{StateRank{.layout = &layout, .program = &any}});
  write_state(state, layout, map, std::array<Executor*, 1>{executor_.get()}, workers);
}

Generator::~Generator() = default;

std::vector<float> Generator::next_logits(std::span<const int32_t> context) {
  const auto longest = static_cast<size_t>(lengths_.back());
  context = context.last(std::min(context.size(), longest));
  const auto program =
      std::lower_bound(lengths_.begin(), lengths_.end(), static_cast<int64_t>(context.size()));
  std::vector<int32_t> tokens(static_cast<size_t>(*program),
                              0);  // attention is causal: padding after the context has no effect
  std::copy(context.begin(), context.end(), tokens.begin());
  const std::string prefix = prefix_of(*program);
  executor_->write(prefix + ".tokens", 0, std::as_bytes(std::span(tokens)));
  executor_->run(static_cast<size_t>(program - lengths_.begin()));
  const int64_t row_elems = static_cast<int64_t>(context.size() - 1) * model_.padded_vocabulary();
  const auto read_row = [&](auto row) {
    using T = typename decltype(row)::value_type;
    executor_->read(prefix + ".logits", row_elems * static_cast<int64_t>(sizeof(T)),
                    std::as_writable_bytes(std::span(row)));
    return std::vector<float>(row.begin(), row.end());
  };
  const auto count = static_cast<size_t>(model_.vocabulary);
  std::vector<float> logits = logits_dtype_ == DType::kBF16 ? read_row(std::vector<BFloat16>(count))
                                                            : read_row(std::vector<float>(count));
  check_logits(logits, context.size(), logits_dtype_);
  return logits;
}

std::vector<int32_t> Generator::generate(std::vector<int32_t> context, int64_t max_tokens,
                                         std::span<const int32_t> ends,
                                         const SamplingOptions& options,
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
    if (std::ranges::find(ends, token) != ends.end()) {
      break;
    }
    context.push_back(token);
    on_token(token);
  }
  return context;
}

}  // namespace braid
