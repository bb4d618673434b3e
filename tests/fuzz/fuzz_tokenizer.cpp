// Any bytes as a SentencePiece model or, from a brace on, as a tokenizer.json: a tokenizer whose
// ids can be decoded one by one and that takes text, or DataError.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "base/errors.h"
#include "data/tokenizer.h"
#include "fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const braid::FuzzFolder folder;
  const bool is_json = size > 0 && data[0] == '{';
  const std::string path = folder.write(is_json ? "fuzz.json" : "fuzz.model", data, size);
  try {
    const auto tokenizer = braid::load_tokenizer(path);
    for (int32_t id = 0; id < tokenizer->vocabulary_size(); ++id) {
      static_cast<void>(tokenizer->decode(std::span(&id, 1)));
    }
    const std::vector<int32_t> ids =
        tokenizer->encode("a b\n\xC3\xBC \xE2\x96\x81 c1e\xCC\x81\xFF<s>");
    const bool known = std::ranges::all_of(
        ids, [&](int32_t id) { return id >= 0 && id < tokenizer->vocabulary_size(); });
    if (!known) {
      std::abort();
    }
  } catch (const braid::DataError&) {
  }
  return 0;
}
