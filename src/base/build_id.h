#pragma once

#include <string>

namespace braid {

/// What changes whenever the code of this program does, or its compiler or flags: the GNU build ID,
/// a hash that the linker computes of the program's file, or of braid's if it is a shared library.
/// 40 hexadecimal digits, those of `readelf -n braid`; "unknown" if the linker made none.
std::string build_id();

}  // namespace braid
