#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/parameters.h"
#include "parallel/parallel_options.h"

namespace braid {

/// Gives a parameter the decay and the rate of its groups.
void apply_groups(const ParameterGroups& groups, Parameter& parameter);

/// The patterns that fit none of these parameters.
std::vector<std::string> patterns_without_parameter(const ParameterGroups& groups,
                                                    std::span<const Parameter> parameters);

/// A line for each group of parameters that are updated alike: how many, and their elements.
/// `parameters` are those of the model, before `apply_groups`.
std::string describe_groups(const ParallelOptions& options, double weight_decay,
                            std::span<const Parameter> parameters);

}  // namespace braid
