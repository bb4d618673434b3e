#include "generate/causal_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "base/finite_check.h"
#include "base/text.h"
#include "base/worker_pool.h"
#include "model/mtp.h"
#include "parallel/step_program.h"
#include "plan/run_plan.h"
#include "runtime/host_needs.h"
#include "runtime/memory_check.h"
#include "state/state_transfer.h"

namespace braid {
namespace {

constexpr int64_t kShortestProgram = 32;
constexpr const char* kLossPrefix = "score";

std::string prefix_of(int64_t length) {
  return fmt::format("generate_{}", length);
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
                      const std::vector<int64_t>& lengths, DType dtype, bool computes_loss) {
  std::vector<Program> programs;
  for (const int64_t length : lengths) {
    programs.push_back(build_eval_program(model, layout, Mesh(MeshSizes{}), 0,
                                          {.microbatch = 1,
                                           .sequence = length,
                                           .dtype = dtype,
                                           .end = ForwardEnd::kLogits,
                                           .prefix = prefix_of(length)}));
  }
  if (computes_loss) {
    programs.push_back(build_eval_program(model, layout, Mesh(MeshSizes{}), 0,
                                          {.microbatch = 1,
                                           .sequence = lengths.back(),
                                           .dtype = dtype,
                                           .end = ForwardEnd::kLoss,
                                           .prefix = kLossPrefix}));
  }
  return plan_programs(std::move(programs));
}

MemoryUse use_of(const RankPlan& plan, const ParameterLayout& layout,
                 const CausalModelOptions& options) {
  const bool on_gpu = options.device.gpu.has_value();
  return {.needs = on_gpu ? rank_needs(*options.device.backend, plan, {})
                          : cpu_needs(plan, layout, options.threads),
          .owner = on_gpu ? "the " + options.device.gpu->name : "this machine",
          .kind = on_gpu ? "GPU memory" : "memory",
          .free_bytes = options.free_bytes.value_or(std::numeric_limits<int64_t>::max())};
}

/// The longest context that fits, with its bytes.
std::string fitting_context(int64_t longest, const ParameterLayout& layout, const ModelSpec& model,
                            const CausalModelOptions& options) {
  for (int64_t length = longest / 2; length >= 1; length /= 2) {
    const RankPlan plan = plan_lengths(model, layout, program_lengths(length),
                                       compute_dtype(options.device), options.computes_loss);
    const MemoryUse use = use_of(plan, layout, options);
    if (use.fits()) {
      return fmt::format("nearest valid setting: --context {} ({})", length,
                         format_bytes(use.needs.bytes()));
    }
  }
  return options.device.gpu ? "no shorter --context fits; give --device cpu"
                            : "no shorter --context fits";
}

std::unique_ptr<Executor> make_executor(RankPlan plan, const CausalModelOptions& options) {
  const Device& device = options.device;
  return device.backend->make_executor(std::move(plan.programs), std::move(plan.memory),
                                       {.device = device.gpu ? device.gpu->device : 0,
                                        .num_workers = options.threads,
                                        .cache_folder = options.cache_folder});
}

/// `rows` [.., vocabulary]; the first one follows `num_tokens` tokens.
void check_logits(std::span<const float> rows, int64_t vocabulary, int64_t num_tokens,
                  DType dtype) {
  const std::optional<int64_t> bad = find_non_finite(
      reinterpret_cast<const std::byte*>(rows.data()), std::ssize(rows), DType::kF32);
  if (bad) {
    throw_data_error(
        "after {} tokens the model's logit of token {} is {}: its weights are no result of "
        "training, or too large for {}",
        num_tokens + *bad / vocabulary, *bad % vocabulary, rows[static_cast<size_t>(*bad)],
        dtype_name(dtype));
  }
}

/// Rows of `row_elems` elements of T, from byte `offset_bytes` on; of each the first `kept_elems`.
template <class T>
std::vector<float> read_rows(Executor& executor, const std::string& buffer, int64_t first,
                             int64_t count, int64_t row_elems, int64_t kept_elems) {
  std::vector<T> rows(static_cast<size_t>(count * row_elems));
  executor.read(buffer, first * row_elems * static_cast<int64_t>(sizeof(T)),
                std::as_writable_bytes(std::span(rows)));
  std::vector<float> kept(static_cast<size_t>(count * kept_elems));
  for (int64_t row = 0; row < count; ++row) {
    std::copy_n(rows.begin() + row * row_elems, kept_elems, kept.begin() + row * kept_elems);
  }
  return kept;
}

}  // namespace

CausalModel::CausalModel(const ModelSpec& model, const StateSource& state, int64_t max_tokens,
                         const CausalModelOptions& options)
    : model_(without_mtp(model)),
      lengths_(program_lengths(max_tokens)),
      dtype_(compute_dtype(options.device)),
      computes_loss_(options.computes_loss) {
  // Units of multi-token prediction come last, so those of the model have the same numbers in
  // `state`.
  const ParameterLayout layout = make_parameter_layout(model_parameters(model_));
  RankPlan plan = plan_lengths(model_, layout, lengths_, dtype_, options.computes_loss);
  if (const MemoryUse use = use_of(plan, layout, options); !use.fits()) {
    throw_config_error("{}; {}", describe_shortage(use),
                       fitting_context(max_tokens, layout, model_, options));
  }
  const Program any = plan.programs.front();  // all have the same weights
  executor_ = make_executor(std::move(plan), options);
  WorkerPool workers(options.threads);
  const StateMap map(layout, std::array{StateRank{.layout = &layout, .program = &any}});
  write_state(state, layout, map, std::array<Executor*, 1>{executor_.get()}, workers);
}

CausalModel::~CausalModel() = default;

void CausalModel::run(std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  check(count >= 1 && count <= max_tokens(), "a sequence of {} tokens, at most {}", count,
        max_tokens());
  const auto program = std::lower_bound(lengths_.begin(), lengths_.end(), count);
  std::vector<int32_t> padded(static_cast<size_t>(*program),
                              0);  // attention is causal: padding at the end has no effect
  std::copy(tokens.begin(), tokens.end(), padded.begin());
  executor_->write(prefix_of(*program) + ".tokens", 0, std::as_bytes(std::span(padded)));
  last_program_ = static_cast<size_t>(program - lengths_.begin());
  last_tokens_ = count;
  executor_->run(last_program_);
}

std::vector<float> CausalModel::logits(int64_t first, int64_t count) {
  check(first >= 0 && count >= 1 && first + count <= last_tokens_, "logits [{}, {}) of {} tokens",
        first, first + count, last_tokens_);
  const std::string buffer = prefix_of(lengths_[last_program_]) + ".logits";
  const auto read = dtype_ == DType::kBF16 ? &read_rows<BFloat16> : &read_rows<float>;
  std::vector<float> rows =
      read(*executor_, buffer, first, count, model_.padded_vocabulary(), model_.vocabulary);
  check_logits(rows, model_.vocabulary, first + 1, dtype_);
  return rows;
}

double CausalModel::loss(std::span<const int32_t> tokens) {
  check(computes_loss_ && std::ssize(tokens) == max_tokens() + 1, "the loss of {} tokens",
        tokens.size());
  const auto write = [&](const char* name, std::span<const std::byte> bytes) {
    executor_->write(fmt::format("{}.{}", kLossPrefix, name), 0, bytes);
  };
  const float mean = 1.0f / static_cast<float>(max_tokens());
  write("tokens", std::as_bytes(tokens.first(tokens.size() - 1)));
  write("labels", std::as_bytes(tokens.subspan(1)));
  write("loss_scale", std::as_bytes(std::span(&mean, 1)));
  executor_->run(lengths_.size());
  float loss = 0;
  executor_->read(fmt::format("{}.loss", kLossPrefix), 0,
                  std::as_writable_bytes(std::span(&loss, 1)));
  if (!std::isfinite(loss)) {
    throw_data_error(
        "the loss of {} tokens is {}: the model's weights are no result of training, or too large "
        "for {}",
        max_tokens(), loss, dtype_name(dtype_));
  }
  return loss;
}

}  // namespace braid
