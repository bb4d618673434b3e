#pragma once

#include <span>
#include <string>
#include <string_view>

namespace braid {

/// A shared library that is loaded when it is needed, and never unloaded, so that programs run
/// where it is missing.
class LoadedLibrary {
 public:
  /// Looked for where the loader looks, then in these folders relative to that of cuBLAS, as
  /// toolkits and Python wheels have it. Throws DeviceError with the loader's words about the first
  /// place.
  LoadedLibrary(std::string_view name, std::span<const std::string_view> beside_cublas);

  const std::string& path() const { return path_; }

  /// Sets `function` to the library's function of that name. Throws DeviceError if it has none.
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
