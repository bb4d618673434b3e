// Any bytes as a checkpoint's state.json: one that prints and reads back the same, or DataError.
// The checksum in the input, if there is one, is set right first: no fuzzer finds it.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/checksum.h"
#include "base/errors.h"
#include "checkpoint/state_file.h"

namespace {

std::string with_right_checksum(std::string text) {
  constexpr std::string_view kField = "\"state_xxh3\": \"";
  constexpr size_t kDigits = 16;
  const size_t field = text.rfind(kField);
  if (field == std::string::npos || text.size() - field < kField.size() + kDigits) {
    return text;
  }
  const size_t digits = field + kField.size();
  braid::Checksum checksum;
  checksum.add(std::as_bytes(std::span(text).first(digits)));
  checksum.add(std::as_bytes(std::span(text).subspan(digits + kDigits)));
  return text.replace(digits, kDigits, checksum.hex());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text =
      with_right_checksum(std::string(reinterpret_cast<const char*>(data), size));
  try {
    const braid::StoredState stored = braid::parse_state(text, "fuzz");
    const std::string printed = braid::print_state(stored);
    if (braid::print_state(braid::parse_state(printed, "printed")) != printed) {
      std::abort();
    }
  } catch (const braid::DataError&) {
  }
  return 0;
}
