#pragma once

#include <string_view>

namespace braid {

// The files of src/report/assets, compiled in by embed_assets.cmake.

/// page.html, in which {{name}} is a placeholder.
std::string_view report_page();
/// style.css
std::string_view report_style();
/// All scripts, concatenated.
std::string_view report_script();

}  // namespace braid
