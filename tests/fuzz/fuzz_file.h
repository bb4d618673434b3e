#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace braid {

/// A folder of this process for readers that take a path; removed when the process ends by itself.
/// (An input that fails leaves it.)
class FuzzFolder {
 public:
  FuzzFolder() {
    const std::string memory = "/dev/shm";  // no disk in the way, where there is one
    const std::filesystem::path parent = std::filesystem::is_directory(memory)
                                             ? memory
                                             : std::filesystem::temp_directory_path().string();
    path_ = (parent / ("braid-fuzz-" + std::to_string(::getpid()))).string();
    std::filesystem::create_directories(path_);
  }
  FuzzFolder(const FuzzFolder&) = delete;
  FuzzFolder& operator=(const FuzzFolder&) = delete;
  ~FuzzFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }

  /// Writes a file and returns its path.
  std::string write(const std::string& name, const void* data, size_t size) const {
    const std::string path = path_ + "/" + name;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
    if (!file.flush()) {
      std::abort();
    }
    return path;
  }

 private:
  std::string path_;
};

}  // namespace braid
