#pragma once

#include <string>

namespace braid {

/// The name of a kernel for people: demangled, without return type, parameters and anonymous
/// namespaces, at most 120 characters. Symbols that are not mangled names are unchanged.
std::string kernel_name(const std::string& symbol);

}  // namespace braid
