#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// The letters of each stage of a layout string (parallel.pipeline_layout; see
/// PipelineLayoutOptions), repetitions written out: "Et*2|tL" gives {"Ett", "tL"}. Throws
/// ConfigError naming the option and the place for what is no such string, and for more than
/// 100,000 letters.
std::vector<std::string> parse_layout_string(std::string_view layout);

}  // namespace braid
