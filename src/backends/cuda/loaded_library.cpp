#include "backends/cuda/loaded_library.h"

#include <dlfcn.h>

#include <vector>

#include "base/errors.h"

namespace braid {
namespace {

/// The folder of the loaded library that defines this symbol; empty if there is none.
std::string folder_of_symbol(const char* symbol) {
  Dl_info info{};
  void* const address = dlsym(RTLD_DEFAULT, symbol);
  if (address == nullptr || dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
    return "";
  }
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::vector<std::string> candidates(std::string_view name,
                                    std::span<const std::string_view> beside_cublas) {
  std::vector<std::string> paths{std::string(name)};
  const std::string folder = folder_of_symbol("cublasLtCreate");
  if (!folder.empty()) {
    for (const std::string_view beside : beside_cublas) {
      paths.push_back(fmt::format("{}/{}{}", folder, beside, name));
    }
  }
  return paths;
}

}  // namespace

LoadedLibrary::LoadedLibrary(std::string_view name,
                             std::span<const std::string_view> beside_cublas) {
  std::string reason;
  for (const std::string& path : candidates(name, beside_cublas)) {
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      path_ = path;
      return;
    }
    if (reason.empty()) {
      reason = dlerror();
    }
  }
  throw_device_error("{}", reason);
}

void* LoadedLibrary::address_of(const char* name) const {
  void* const address = dlsym(handle_, name);
  if (address == nullptr) {
    throw_device_error("{} has no function {}", path_, name);
  }
  return address;
}

}  // namespace braid
