#include "plan/optimizer_setup.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "config/choices.h"
#include "parallel/layer_matrices.h"
#include "parallel/parameter_groups.h"

namespace braid {
namespace {

/// An entry of optimizer.rates: "pattern = factor".
std::pair<std::string, double> rate_of(const std::string& entry) {
  const size_t sign = entry.rfind('=');
  const std::string pattern(trim(std::string_view(entry).substr(0, sign)));
  const std::string number(
      sign == std::string::npos ? "" : trim(std::string_view(entry).substr(sign + 1)));
  double factor = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), factor);
  if (error != std::errc() || end != number.data() + number.size() || !(factor >= 0) ||
      !std::isfinite(factor) || pattern.empty()) {
    throw_config_error(
        "optimizer.rates = {}: must be a pattern, an equals sign and a number, at least 0, for "
        "example \"embedding.* = 0.1\"",
        quote(entry));
  }
  return {pattern, factor};
}

}  // namespace

OptimizerOptions optimizer_options(const RunConfig& config) {
  const OptimizerConfig& optimizer = config.optimizer;
  return {.kind = choice<OptimizerKind>(optimizer.name),
          .beta1 = optimizer.beta1,
          .beta2 = optimizer.beta2,
          .epsilon = optimizer.epsilon,
          .momentum = optimizer.momentum,
          .nesterov = optimizer.nesterov,
          .muon = {.momentum = optimizer.muon_momentum,
                   .nesterov = optimizer.muon_nesterov,
                   .num_steps = optimizer.muon_steps,
                   .scale = choice<MuonScale>(optimizer.muon_scale),
                   .dtype = choice<DType>(optimizer.muon_dtype)},
          .weight_decay = optimizer.weight_decay,
          .max_grad_norm = optimizer.clip_norm,
          .moments_dtype = choice<DType>(optimizer.moments_dtype),
          .main_grads_dtype = choice<DType>(optimizer.main_grads_dtype),
          .bias_update_rate = config.moe.bias_update_rate,
          .ema = optimizer.ema};
}

ParameterGroups parameter_groups(const OptimizerConfig& optimizer, const ModelSpec& model) {
  ParameterGroups groups{.no_decay = optimizer.no_decay, .rates = {}};
  for (const std::string& entry : optimizer.rates) {
    groups.rates.push_back(rate_of(entry));
  }
  const std::vector<Parameter> parameters = model_parameters(model);
  const std::vector<std::string> unused = patterns_without_parameter(groups, parameters);
  if (!unused.empty()) {
    throw_config_error(
        "optimizer.no_decay, optimizer.rates: {} fits no parameter; names are like {} and {}",
        quote(unused.front()), quote(parameters.front().name), quote(parameters.back().name));
  }
  return groups;
}

bool uses_muon(const RunConfig& config, const ModelSpec& model) {
  if (choice<OptimizerKind>(config.optimizer.name) != OptimizerKind::kMuon) {
    return false;
  }
  constexpr std::string_view kInstead = "set optimizer.name = \"adamw\"";
  if (config.lora.rank > 0) {
    throw_config_error(
        "optimizer.name = \"muon\" with lora.rank = {}: Muon is for matrices, not for their "
        "adapters; {}",
        config.lora.rank, kInstead);
  }
  for (const Parameter& parameter : model_parameters(model)) {
    const auto copied = std::ranges::find_if(parameter.heads, [&](const HeadRows& run) {
      return run.heads % config.parallel.tensor != 0;
    });
    if (is_muon_matrix(parameter) && copied != parameter.heads.end()) {
      throw_config_error(
          "optimizer.name = \"muon\" with parallel.tensor = {}: {} has {} heads, of which ranks "
          "would hold copies; set parallel.tensor = {}, or {}",
          config.parallel.tensor, quote(parameter.name), copied->heads,
          std::gcd(copied->heads, config.parallel.tensor), kInstead);
    }
  }
  return true;
}

}  // namespace braid
