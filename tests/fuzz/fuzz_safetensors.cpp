// Arbitrary bytes as a safetensors file: either a header whose tensors cover the file, or
// DataError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/errors.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto read = [&](int64_t offset_bytes, std::span<std::byte> out) {
      if (offset_bytes < 0 || offset_bytes + out.size() > size) {
        std::abort();
      }
      std::memcpy(out.data(), data + offset_bytes, out.size());
    };
    const braid::SafetensorsHeader header =
        braid::read_safetensors_header(static_cast<int64_t>(size), read, "fuzz");
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
