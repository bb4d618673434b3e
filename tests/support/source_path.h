#pragma once

#include <string>
#include <string_view>

namespace braid {

/// Of a file or folder of the repository that this test program was built from. One source alone
/// knows it, so that the compiler cache finds tests that were compiled in another clone.
std::string source_path(std::string_view relative);

}  // namespace braid
