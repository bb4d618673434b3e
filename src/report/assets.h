#pragma once

#include <string_view>

namespace braid {

// The files of src/report/assets, compiled in by embed_assets.cmake.

/// page.html, in which {{name}} stands for a part.
std::string_view report_page();
/// style.css
std::string_view report_style();
/// All scripts, one after the other.
std::string_view report_script();

}  // namespace braid
