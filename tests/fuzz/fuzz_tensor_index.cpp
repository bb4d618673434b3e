// Any bytes as a checkpoint's index.json: one that prints and reads back the same, or DataError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/errors.h"
#include "checkpoint/tensor_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const braid::TensorIndex index = braid::parse_index(text, "fuzz");
    if (braid::parse_index(braid::print_index(index), "printed") != index) {
      std::abort();
    }
    for (const braid::StoredTensor& tensor : index.tensors) {
      int64_t elems = 0;
      for (const braid::StoredPiece& piece : tensor.pieces) {
        elems += piece.range.num_elems();
        static_cast<void>(braid::piece_shape(tensor.shape, piece.range));
      }
      if (elems != tensor.shape.num_elems()) {
        std::abort();
      }
    }
  } catch (const braid::DataError&) {
  }
  return 0;
}
