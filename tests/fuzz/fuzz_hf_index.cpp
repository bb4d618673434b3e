// Any bytes as model.safetensors.index.json beside two files of tensors: the tensors, or DataError.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "base/errors.h"
#include "fuzz_file.h"
#include "hugging_face/tensor_folder.h"

namespace {

/// Tensors of one byte each.
void write_tensors(const std::string& path, const std::vector<std::string>& names) {
  std::vector<braid::TensorInfo> tensors;
  for (const std::string& name : names) {
    tensors.push_back({name, braid::DType::kU8, {1}});
  }
  braid::SafetensorsWriter writer(path, tensors, {});
  writer.write(std::vector<std::byte>(names.size()));
  writer.finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const braid::FuzzFolder folder;
  static const bool is_ready = [] {
    write_tensors(folder.path() + "/a.safetensors", {"a", "b"});
    write_tensors(folder.path() + "/b.safetensors", {"c"});
    return true;
  }();
  static_cast<void>(is_ready);
  folder.write("model.safetensors.index.json", data, size);
  try {
    const braid::HfTensorFolder tensors(folder.path());
    for (const std::string& name : tensors.names()) {
      const braid::HfTensorFolder::Place place = *tensors.find(name);
      std::array<std::byte, 1> value = {};
      place.file->reader(*place.entry).read(value);  // throws unless the file has the byte
      if (place.entry->end_bytes - place.entry->begin_bytes != 1) {
        std::abort();
      }
    }
  } catch (const braid::DataError&) {
  }
  return 0;
}
