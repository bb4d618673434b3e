#include "generate/loaded_programs.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "base/finite_check.h"
#include "base/text.h"
#include "base/worker_pool.h"
#include "model/parameters.h"
#include "runtime/host_needs.h"
#include "runtime/memory_check.h"
#include "state/state_transfer.h"

namespace braid {
namespace {

using PlanFor = std::function<RankPlan(const ParameterLayout&, int64_t)>;

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
std::string fitting_context(int64_t longest, const ParameterLayout& layout, const PlanFor& plan,
                            const CausalModelOptions& options) {
  for (int64_t length = longest / 2; length >= 1; length /= 2) {
    const MemoryUse use = use_of(plan(layout, length), layout, options);
    if (use.fits()) {
      return fmt::format("nearest valid setting: --context {} ({})", length,
                         format_bytes(use.needs.bytes()));
    }
  }
  return options.device.gpu ? "no shorter --context fits; give --device cpu"
                            : "no shorter --context fits";
}

/// The first `kept_elems` elements of rows of `row_elems` elements of T.
template <class T>
std::vector<float> read_rows(Executor& executor, std::string_view buffer, int64_t first,
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

DType compute_dtype(const Device& device) {
  return device.backend->dtypes.front();
}

LoadedPrograms::LoadedPrograms(const ModelSpec& model, const StateSource& state, int64_t max_tokens,
                               const CausalModelOptions& options, const PlanFor& plan_for)
    : vocabulary_(model.vocabulary),
      padded_vocabulary_(model.padded_vocabulary()),
      dtype_(compute_dtype(options.device)) {
  const ParameterLayout layout = make_parameter_layout(model_parameters(model));
  RankPlan plan = plan_for(layout, max_tokens);
  if (const MemoryUse use = use_of(plan, layout, options); !use.fits()) {
    throw_config_error("{}; {}", describe_shortage(use),
                       fitting_context(max_tokens, layout, plan_for, options));
  }
  for (const Program& program : plan.programs) {
    for (const Buffer& buffer : program.buffers) {
      if (buffer.role == BufferRole::kIo) {
        io_.insert(buffer.name);
      }
    }
  }
  const Program any = plan.programs.front();  // all have the same weights
  const Device& device = options.device;
  executor_ = device.backend->make_executor(std::move(plan.programs), std::move(plan.memory),
                                            {.device = device.gpu ? device.gpu->device : 0,
                                             .num_workers = options.threads,
                                             .cache_folder = options.cache_folder});
  WorkerPool workers(options.threads);
  const StateMap map(layout, std::array{StateRank{.layout = &layout, .program = &any}});
  write_state(state, layout, map, std::array<Executor*, 1>{executor_.get()}, workers);
}

LoadedPrograms::~LoadedPrograms() = default;

std::vector<float> LoadedPrograms::logits(std::string_view buffer, int64_t first, int64_t count,
                                          int64_t num_tokens) {
  const auto read = dtype_ == DType::kBF16 ? &read_rows<BFloat16> : &read_rows<float>;
  std::vector<float> rows = read(*executor_, buffer, first, count, padded_vocabulary_, vocabulary_);
  const std::optional<int64_t> bad = find_non_finite(
      reinterpret_cast<const std::byte*>(rows.data()), std::ssize(rows), DType::kF32);
  if (bad) {
    throw_data_error(
        "after {} tokens the model's logit of token {} is {}: its weights are no result of "
        "training, or too large for {}",
        num_tokens + *bad / vocabulary_, *bad % vocabulary_, rows[static_cast<size_t>(*bad)],
        dtype_name(dtype_));
  }
  return rows;
}

}  // namespace braid
