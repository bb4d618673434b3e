// Any bytes as JSON: a document that prints and reads back the same, whichever way its objects are
// ordered, or DataError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const nlohmann::json json = braid::parse_json(text, "fuzz");
    const nlohmann::ordered_json ordered = braid::parse_ordered_json(text, "fuzz");
    if (braid::parse_json(json.dump(), "printed") != json ||
        braid::parse_json(ordered.dump(), "printed") != json) {
      std::abort();
    }
  } catch (const braid::DataError& error) {
    if (!braid::is_printable(braid::inert_line(error.what()))) {
      std::abort();
    }
  }
  return 0;
}
