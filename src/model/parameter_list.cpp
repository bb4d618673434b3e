#include "model/parameter_list.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/lora.h"

namespace braid {

ParameterList::ParameterList(const ModelSpec& spec)
    : spec_(spec),
      residual_scale_(1.0 / std::sqrt(static_cast<double>(spec.layers.num_blocks()))) {}

void ParameterList::enter(std::string unit, int32_t layer) {
  unit_ = std::move(unit);
  layer_ = layer;
}

void ParameterList::embedding(std::string_view name, int64_t rows, bool vocabulary_rows) {
  add({.name = scoped(name),
       .shape = {rows, spec_.width},
       .init_std = spec_.init_std,
       .vocabulary_rows = vocabulary_rows,
       .split = vocabulary_rows ? TensorSplit::kVocabulary : TensorSplit::kWhole});
}

void ParameterList::norm(std::string_view name) {
  vector(fmt::format("{}.weight", name), spec_.width, norm_init(), TensorSplit::kNorm);
  if (spec_.style.norm == NormKind::kLayerNorm) {
    vector(fmt::format("{}.bias", name), spec_.width, ParameterInit::kZeros, TensorSplit::kNorm);
  }
}

ParameterInit ParameterList::norm_init() const {
  return spec_.norm_offset == 1 ? ParameterInit::kZeros : ParameterInit::kOnes;
}

void ParameterList::linear(std::string_view name, const Linear& facts) {
  const Parameter weight{.name = scoped(fmt::format("{}.weight", name)),
                         .shape = {facts.out, facts.in},
                         .init_std = spec_.init_std * facts.std_scale,
                         .gate_up_rows = facts.gate_up_rows,
                         .matrices = facts.matrices,
                         .split = facts.split,
                         .heads = facts.heads};
  add(weight);
  if (facts.bias) {
    const bool columns = facts.split == TensorSplit::kColumns;
    vector(fmt::format("{}.bias", name), facts.out, ParameterInit::kZeros,
           columns ? TensorSplit::kWhole : facts.split, facts.heads);
  }
  adapters(weight);
}

/// Tensor ranks share rows of B as those of the weight, and columns of A as those of the weight.
/// The other of the two is on all ranks, each of which computes a part of its gradient: from its
/// rows of the result, or from its columns of x. Magnitudes are shared as rows of B.
void ParameterList::adapters(const Parameter& weight) {
  const std::vector<AdaptedMatrix> matrices = adapted_matrices(spec_.lora, weight);
  if (matrices.empty()) {
    return;
  }
  const int64_t rank = spec_.lora.rank;
  const int64_t in = weight.shape[1];
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));
  const bool columns = weight.split == TensorSplit::kColumns;
  adapter({.name = matrices.front().a,
           .shape = {std::ssize(matrices) * rank, in},
           .init = ParameterInit::kUniform,
           .init_low = -bound,
           .init_high = bound,
           .split = columns ? TensorSplit::kColumns : TensorSplit::kPartialSum});
  for (const AdaptedMatrix& matrix : matrices) {
    const auto found = std::ranges::find(weight.matrices, matrix.name);
    const auto index = static_cast<size_t>(found - weight.matrices.begin());
    adapter({.name = matrix.b,
             .shape = {matrix.num_rows, rank},
             .init = ParameterInit::kZeros,
             .split = columns ? TensorSplit::kPartialSum : weight.split,
             .heads = weight.heads.empty() ? std::vector<HeadRows>()
                                           : std::vector{weight.heads[index]}});
  }
  if (!matrices.front().magnitude.empty()) {
    adapter({.name = matrices.front().magnitude,
             .shape = {weight.shape[0]},
             .init = ParameterInit::kZeros,
             .weight_decay = false,
             .split = columns ? TensorSplit::kPartialSum : weight.split,
             .heads = weight.heads});
  }
}

void ParameterList::experts(std::string_view name, const Experts& facts) {
  add({.name = scoped(fmt::format("{}.weight", name)),
       .shape = {facts.experts * facts.out, facts.in},
       .init_std = spec_.init_std * facts.std_scale,
       .gate_up_rows = facts.gate_up_rows,
       .split = facts.split,
       .domain = DomainKind::kExpert});
}

void ParameterList::head_norm(std::string_view name, int64_t size) {
  vector(fmt::format("{}.weight", name), size, norm_init(), TensorSplit::kPartialSum);
}

void ParameterList::latent_norm(std::string_view name, int64_t size) {
  vector(fmt::format("{}.weight", name), size, norm_init(), TensorSplit::kNorm);
}

void ParameterList::logit_bias(std::string_view name, int64_t size) {
  vector(fmt::format("{}.logit_bias", name), size, ParameterInit::kZeros, TensorSplit::kNorm);
}

void ParameterList::router_bias(std::string_view name, int64_t size) {
  add({.name = scoped(fmt::format("{}.bias", name)),
       .shape = {size},
       .init = ParameterInit::kZeros,
       .weight_decay = false,
       .balances = true,
       .split = TensorSplit::kNorm});
}

void ParameterList::add(std::string_view name, Parameter parameter) {
  parameter.name = scoped(name);
  add(std::move(parameter));
}

std::string ParameterList::scoped(std::string_view name) const {
  return fmt::format("{}.{}", unit_, name);
}

void ParameterList::add(Parameter parameter) {
  parameter.layer = layer_;
  parameter.unit = unit_;
  parameter.frozen = spec_.lora.is_on();
  list_.push_back(std::move(parameter));
}

void ParameterList::adapter(Parameter parameter) {
  parameter.layer = layer_;
  parameter.unit = fmt::format("{}.lora", unit_);
  list_.push_back(std::move(parameter));
}

void ParameterList::vector(std::string_view name, int64_t size, ParameterInit init,
                           TensorSplit split, std::vector<HeadRows> heads) {
  add({.name = scoped(name),
       .shape = {size},
       .init = init,
       .weight_decay = false,
       .split = split,
       .heads = std::move(heads)});
}

}  // namespace braid
