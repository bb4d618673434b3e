#pragma once

#include <string>

namespace braid {

/// Names this boot of this machine: the same for all processes that share its memory, though host
/// names may be equal in containers.
std::string host_name();

}  // namespace braid
