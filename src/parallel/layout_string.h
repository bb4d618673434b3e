#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// Splits a layout string (parallel.pipeline_layout; see PipelineLayoutOptions) into the letters of
/// each stage and expands repetitions: "Et*2|tL" gives {"Ett", "tL"}. Throws ConfigError with the
/// option and the position for an invalid string or more than 100,000 letters.
std::vector<std::string> parse_layout_string(std::string_view layout);

}  // namespace braid
