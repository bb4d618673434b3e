#pragma once

#include <string>
#include <string_view>

namespace braid {

bool is_section(std::string_view name);

// Suggestions for errors about unknown names: the nearest name, else the existing names.

/// "did you mean [train]?" or "sections are model, train, ...".
std::string suggest_section(std::string_view name);

/// "did you mean train.steps?" (the key may be in another section), or "keys of [eval] are
/// interval, batches". Requires: `section` exists.
std::string suggest_key(std::string_view section, std::string_view key);

/// The same for a key that was given without a section.
std::string suggest_key_without_section(std::string_view key);

}  // namespace braid
