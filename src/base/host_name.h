#pragma once

#include <string>

namespace braid {

/// Identifies this boot of this machine: the same for all processes that share its memory. Host
/// names alone may be equal in containers.
std::string host_name();

}  // namespace braid
