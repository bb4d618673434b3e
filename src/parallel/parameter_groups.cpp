#include "parallel/parameter_groups.h"

#include <fmt/core.h>
#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "parallel/layer_matrices.h"

namespace braid {
namespace {

bool fits(const std::string& pattern, const Parameter& parameter) {
  return fnmatch(pattern.c_str(), parameter.name.c_str(), 0) == 0;
}

}  // namespace

void apply_groups(const ParameterGroups& groups, Parameter& parameter) {
  const auto here = [&](const std::string& pattern) { return fits(pattern, parameter); };
  if (std::ranges::any_of(groups.no_decay, here)) {
    parameter.weight_decay = false;
  }
  const auto rate =
      std::ranges::find_if(groups.rates, here, &std::pair<std::string, double>::first);
  if (rate != groups.rates.end()) {
    parameter.rate = rate->second;
  }
}

std::vector<std::string> patterns_without_parameter(const ParameterGroups& groups,
                                                    std::span<const Parameter> parameters) {
  std::vector<std::string> patterns = groups.no_decay;
  for (const auto& [pattern, rate] : groups.rates) {
    patterns.push_back(pattern);
  }
  std::erase_if(patterns, [&](const std::string& pattern) {
    return std::ranges::any_of(
        parameters, [&](const Parameter& parameter) { return fits(pattern, parameter); });
  });
  return patterns;
}

std::string describe_groups(const ParallelOptions& options, double weight_decay,
                            std::span<const Parameter> parameters) {
  struct Size {
    int64_t parameters = 0;
    int64_t elems = 0;
  };
  std::map<std::tuple<bool, bool, double>, Size> groups;  // Muon, decay, rate
  for (Parameter parameter : parameters) {
    if (parameter.frozen || parameter.balances) {
      continue;
    }
    const bool muon = options.muon && is_muon_matrix(parameter);
    apply_groups(options.groups, parameter);
    Size& size = groups[{muon, parameter.weight_decay, parameter.rate}];
    ++size.parameters;
    size.elems += parameter.shape.num_elems();
  }
  std::string text;
  for (const auto& [group, size] : groups) {
    const auto& [muon, decays, rate] = group;
    text +=
        fmt::format("{:<10}{}{} parameter{}, {} elements: weight_decay {}, learning_rate x {}\n",
                    text.empty() ? "groups" : "", muon ? "muon, " : "", size.parameters,
                    size.parameters == 1 ? "" : "s", size.elems, decays ? weight_decay : 0.0, rate);
  }
  return text;
}

}  // namespace braid
