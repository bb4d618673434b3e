// Any bytes as a file of documents, one per line in JSON or split at blank lines: documents in
// order of their place in the file, or DataError. Compressed bytes are only decompressed, up to a
// limit: a few of them can stand for gigabytes of text.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "base/errors.h"
#include "data/documents.h"
#include "data/input_file.h"
#include "data/utf8.h"
#include "fuzz_file.h"

namespace {

void decompress(const std::string& path) {
  constexpr size_t kMostBytes = size_t{16} << 20;
  try {
    braid::InputFile file(path);
    size_t bytes = 0;
    for (auto part = file.next(0); !part.empty() && bytes < kMostBytes; part = file.next(0)) {
      bytes += part.size();
      if (file.read_bytes() > file.size_bytes()) {
        std::abort();
      }
    }
  } catch (const braid::DataError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const braid::FuzzFolder folder;
  const braid::DocumentOptions options = {
      .text = {.document_break = braid::DocumentBreak::kBlankLines}};
  if (braid::find_compression(std::as_bytes(std::span(data, size))) != braid::Compression::kNone) {
    decompress(folder.write("fuzz.gz", data, size));
    return 0;
  }
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
