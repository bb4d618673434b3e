// Any bytes as a Hugging Face config.json: a model, which can be printed and read back, or
// DataError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/errors.h"
#include "hugging_face/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const braid::HfConfig config = braid::parse_hf_config(text, "fuzz");
    const std::string printed = braid::print_hf_config(config.model, braid::DType::kF32);
    const braid::HfConfig again = braid::parse_hf_config(printed, "printed");
    if (!again.ignored.empty() ||
        braid::print_hf_config(again.model, braid::DType::kF32) != printed) {
      std::abort();
    }
  } catch (const braid::DataError&) {
  }
  return 0;
}
