#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

/// The one way in which braid reads JSON; `scripts/check_includes.py` refuses others. Files come
/// from anywhere, so a text may cost no more than its size: arrays in arrays must not exhaust the
/// stack of whoever walks over the document, and a key that occurs twice must not hide a value.
namespace braid {

struct JsonLimits {
  int64_t depth = 64;                     ///< arrays and objects inside each other
  int64_t size_bytes = int64_t{1} << 32;  ///< of the text; a file has its own limit when it is read
};

/// Parses one JSON document. Time: n log n in the bytes of the text. `what` says what the text is
/// and begins each message: "'runs/a/report.json'", "profile 'cpu.json'", "'docs.jsonl' line 7".
/// Throws DataError with the position in bytes (from 1) for a text that is not JSON, is too long or
/// nests too deep, or holds a number that no double holds; also for a key that occurs twice.
nlohmann::json parse_json(std::string_view text, std::string_view what,
                          const JsonLimits& limits = {});
/// The same; objects keep the order of their keys. Finding a key takes time linear in their number.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view what,
                                          const JsonLimits& limits = {});

/// The value of an integer that fits into 64 bits; nullopt for anything else. (The library converts
/// any number, an out-of-range one to an undefined value.)
std::optional<int64_t> json_integer(const nlohmann::json& value);
std::optional<int64_t> json_integer(const nlohmann::ordered_json& value);

}  // namespace braid
