#pragma once

#include <optional>
#include <string>

namespace braid {

/// What the first failure of this process was, for whoever ends a process that cannot end by
/// itself: a step that has failed may take long until its work has left the device, and only then
/// becomes an error. Any thread may call these.
void note_failure(const std::string& what);
std::optional<std::string> noted_failure();

}  // namespace braid
