#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/errors.h"
#include "data/indexed_dataset.h"

/// The first 8 bytes are the size of the .bin, the rest is the .idx. Whatever passes the parser
/// must be readable.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  int64_t bin_size_bytes = 0;
  if (size < sizeof(bin_size_bytes)) {
    return 0;
  }
  std::memcpy(&bin_size_bytes, data, sizeof(bin_size_bytes));
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(sizeof(bin_size_bytes));
  try {
    const braid::SequenceIndex index = braid::parse_index(bytes, bin_size_bytes, "fuzz.idx");
    int64_t num_tokens = 0;
    for (int64_t i = 0; i < index.num_sequences(); ++i) {
      num_tokens += index.length(i);
    }
    const int64_t end = index.document_begin(index.num_documents());
    if (num_tokens != index.num_tokens() || end != index.num_sequences()) {
      __builtin_trap();
    }
  } catch (const braid::Error&) {
  }
  return 0;
}
