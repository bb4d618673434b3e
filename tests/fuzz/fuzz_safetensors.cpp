// Arbitrary bytes as a safetensors file: either a header whose tensors cover the file, or
// DataError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/errors.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const braid::SafetensorsHeader header =
        braid::parse_safetensors_header(std::as_bytes(std::span(data, size)), "fuzz");
    int64_t reached_bytes = header.data_begin_bytes;
    for (const braid::TensorEntry& tensor : header.tensors) {
      const int64_t bytes =
          tensor.shape.num_elems() * static_cast<int64_t>(braid::dtype_bytes(tensor.dtype));
      if (header.data_begin_bytes + tensor.begin_bytes != reached_bytes ||
          tensor.end_bytes - tensor.begin_bytes != bytes) {
        std::abort();
      }
      reached_bytes += bytes;
    }
    if (reached_bytes != static_cast<int64_t>(size)) {
      std::abort();
    }
  } catch (const braid::DataError&) {
  }
  return 0;
}
