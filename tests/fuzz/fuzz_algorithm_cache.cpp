// Any bytes as the file of measured algorithm choices: read or ignored, and the next choice is
// stored.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "backends/cuda/algorithm_cache.h"
#include "fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const braid::FuzzFolder folder;
  folder.write("algorithms.txt", data, size);
  if (braid::AlgorithmCache(folder.path()).find("fuzz key") == "fuzz") {
    return 0;
  }
  braid::AlgorithmCache(folder.path()).store("fuzz key", "fuzz");
  if (braid::AlgorithmCache(folder.path()).find("fuzz key") != "fuzz") {
    std::abort();
  }
  return 0;
}
