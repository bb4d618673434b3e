#pragma once

#include <span>
#include <string>
#include <string_view>

namespace braid {

/// A shared library that is loaded on demand and never unloaded, so that programs also run without
/// it.
class LoadedLibrary {
 public:
  /// Searches the loader's path, then these folders relative to that of cuBLAS, where toolkits and
  /// Python wheels install it. Throws DeviceError with the loader's message about the first place.
  LoadedLibrary(std::string_view name, std::span<const std::string_view> beside_cublas);

  const std::string& path() const { return path_; }

  /// Sets `function` to the library's function of that name. Throws DeviceError if there is none.
  template <class Function>
  void find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;

  void* handle_ = nullptr;
  std::string path_;
};

}  // namespace braid
