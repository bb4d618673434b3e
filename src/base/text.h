#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

/// Fewest insertions, deletions, replacements and swaps of two neighbours that turn one text into
/// the other; bytes, not characters. Optimal string alignment (no text is edited twice); time and
/// memory: product of the two sizes.
int64_t edit_distance(std::string_view from, std::string_view to);

/// The candidate that the user most likely meant by `name`: the one with the fewest edits if these
/// are few; else one that contains the name or is contained in it ("vocab", "num_layers"), with at
/// least four letters; nullopt if there is none. Ignores case, and '-' equals '_'. The first of
/// equally near candidates wins. Returns a view into `candidates`.
std::optional<std::string_view> nearest_name(std::string_view name,
                                             std::span<const std::string_view> candidates);

/// The end of an error message: `; did you mean "steps"?`, or nothing where no candidate is near.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates);

/// "a, b, c" for separator ", ".
std::string join(std::span<const std::string> parts, std::string_view separator);
std::string join(std::span<const std::string_view> parts, std::string_view separator);

/// Pieces between separators, without surrounding blanks; "a,,b" has an empty piece in the middle;
/// "" has no piece.
std::vector<std::string> split_text(std::string_view text, char separator);

/// The text without blanks (space, tab, line ends) at both ends.
std::string_view trim(std::string_view text);

/// Whether the text is UTF-8 without control characters, so that it can stand in a line as it is.
/// Control characters are those of ASCII and of U+0080 to U+009F, which terminals obey, line and
/// paragraph separators, and characters that change the direction of the text around them.
bool is_printable(std::string_view text);

/// The text as it can be printed, wherever its parts come from: bytes of control characters (see
/// `is_printable`) and bytes that are not UTF-8 become \xNN, so that a terminal shows them and does
/// not obey them. Line ends ("\n") and tabs stay.
std::string inert(std::string_view text);
/// The same in one line: line ends and tabs become \xNN, too.
std::string inert_line(std::string_view text);

/// In double quotes, with quotes, backslashes, control characters and invalid UTF-8 escaped: one
/// line, always valid TOML if the text is UTF-8. At most `max_bytes` bytes of text, then "...".
std::string quote(std::string_view text, size_t max_bytes = SIZE_MAX);

/// The same without quotes around it, and with quotes and backslashes as they are: for a terminal,
/// from whoever sent the text.
std::string printable(std::string_view text, size_t max_bytes);

/// Three digits and a binary unit: "512 B", "1.50 KiB", "139 GiB".
std::string format_bytes(int64_t bytes);
/// Reads a size with its unit, B or a prefix (K, M, G, T, P; binary with an "i": "80GiB", "1.5 TB",
/// "512 B"), rounded down to whole bytes. nullopt for anything else: a number alone, a negative
/// one, or more than 64 bits hold.
std::optional<int64_t> parse_byte_size(std::string_view text);
/// Three digits and a decimal unit: "950", "12.3K", "1.24B".
std::string format_count(int64_t count);
/// "85 ns", "1.20 ms", "59.1 s", "2 min 05 s", "3 h 07 min", "2 d 04 h". Negative and non-finite
/// durations: "unknown".
std::string format_duration(double seconds);

}  // namespace braid
