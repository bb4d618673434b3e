#include "generate/causal_model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "backends/executor.h"
#include "base/errors.h"
#include "model/mtp.h"
#include "parallel/step_program.h"
#include "plan/run_plan.h"

namespace braid {
namespace {

constexpr int64_t kShortestProgram = 32;
constexpr const char* kLossPrefix = "score";

std::string prefix_of(int64_t length) {
  return fmt::format("generate_{}", length);
}

/// One ends where other rotary frequencies begin, so that a sequence has those of its own length.
std::vector<int64_t> program_lengths(const ModelSpec& model, int64_t max_context) {
  std::vector<int64_t> lengths;
  for (int64_t length = kShortestProgram; length < max_context; length *= 2) {
    lengths.push_back(length);
  }
  lengths.push_back(max_context);
  const int64_t end = model.rope_scaling.first_length_end();
  const auto after = std::ranges::lower_bound(lengths, end);
  if (end > 0 && after != lengths.end() && *after != end) {
    lengths.insert(after, end);
  }
  return lengths;
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

}  // namespace

CausalModel::CausalModel(const ModelSpec& model, const StateSource& state, int64_t max_tokens,
                         const CausalModelOptions& options)
    // Units of multi-token prediction come last, so those of the model have the same numbers in
    // `state`.
    : model_(without_mtp(model)),
      lengths_(program_lengths(model, max_tokens)),
      computes_loss_(options.computes_loss),
      programs_(model_, state, max_tokens, options,
                [&](const ParameterLayout& layout, int64_t tokens) {
                  return plan_lengths(model_, layout, program_lengths(model_, tokens),
                                      compute_dtype(options.device), options.computes_loss);
                }) {}

void CausalModel::run(std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  check(count >= 1 && count <= max_tokens(), "a sequence of {} tokens, at most {}", count,
        max_tokens());
  const auto program = std::lower_bound(lengths_.begin(), lengths_.end(), count);
  std::vector<int32_t> padded(static_cast<size_t>(*program),
                              0);  // attention is causal: padding at the end has no effect
  std::copy(tokens.begin(), tokens.end(), padded.begin());
  programs_.executor().write(prefix_of(*program) + ".tokens", 0, std::as_bytes(std::span(padded)));
  last_program_ = static_cast<size_t>(program - lengths_.begin());
  last_tokens_ = count;
  programs_.executor().run(last_program_);
}

std::vector<float> CausalModel::logits(int64_t first, int64_t count) {
  check(first >= 0 && count >= 1 && first + count <= last_tokens_, "logits [{}, {}) of {} tokens",
        first, first + count, last_tokens_);
  return programs_.logits(prefix_of(lengths_[last_program_]) + ".logits", first, count, first + 1);
}

double CausalModel::loss(std::span<const int32_t> tokens) {
  check(computes_loss_ && std::ssize(tokens) == max_tokens() + 1, "the loss of {} tokens",
        tokens.size());
  const auto write = [&](const char* name, std::span<const std::byte> bytes) {
    programs_.executor().write(fmt::format("{}.{}", kLossPrefix, name), 0, bytes);
  };
  const float mean = 1.0f / static_cast<float>(max_tokens());
  write("tokens", std::as_bytes(tokens.first(tokens.size() - 1)));
  write("labels", std::as_bytes(tokens.subspan(1)));
  write("loss_scale", std::as_bytes(std::span(&mean, 1)));
  programs_.executor().run(lengths_.size());
  float loss = 0;
  programs_.executor().read(fmt::format("{}.loss", kLossPrefix), 0,
                            std::as_writable_bytes(std::span(&loss, 1)));
  if (!std::isfinite(loss)) {
    throw_data_error(
        "the loss of {} tokens is {}: the model's weights are no result of training, or too large "
        "for {}",
        max_tokens(), loss, dtype_name(programs_.dtype()));
  }
  return loss;
}

}  // namespace braid
