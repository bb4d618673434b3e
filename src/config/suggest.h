#pragma once

#include <string>
#include <string_view>

namespace braid {

bool is_section(std::string_view name);

// What an error says after the name of something that does not exist: the nearest name, else the
// names there are.

/// "did you mean [train]?" or "sections are model, train, ...".
std::string suggest_section(std::string_view name);

/// "did you mean train.steps?", which may be in another section, or "keys of [eval] are interval,
/// batches". Requires: `section` exists.
std::string suggest_key(std::string_view section, std::string_view key);

/// The same for a key that was given without a section.
std::string suggest_key_without_section(std::string_view key);

}  // namespace braid
