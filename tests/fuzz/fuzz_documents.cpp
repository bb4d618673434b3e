// Any bytes as a file of documents, one per line in JSON or split at blank lines: documents in
// order of their place in the file, or DataError.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/errors.h"
#include "data/documents.h"
#include "data/utf8.h"
#include "fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const braid::FuzzFolder folder;
  const braid::DocumentOptions options = {
      .text = {.document_break = braid::DocumentBreak::kBlankLines}};
  for (const char* const name : {"fuzz.jsonl", "fuzz.txt"}) {
    const std::string path = folder.write(name, data, size);
    int64_t reached = 0;
    try {
      braid::for_each_document(path, options, [&](const braid::Document& document) {
        const bool is_good = document.end_bytes >= reached &&
                             document.end_bytes <= document.file_bytes &&
                             document.file_bytes == static_cast<int64_t>(size) &&
                             !braid::find_invalid_utf8(document.text);
        if (!is_good) {
          std::abort();
        }
        reached = document.end_bytes;
      });
    } catch (const braid::DataError&) {
    }
  }
  return 0;
}
