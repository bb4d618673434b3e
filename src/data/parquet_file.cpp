#include "data/parquet_file.h"

#include <dlfcn.h>

#include <array>
#include <exception>
#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "base/file.h"

namespace braid {
namespace {

constexpr std::string_view kModuleName = "braid_parquet.so";

/// The module, or why there is none.
struct LoadedModule {
  ParquetModule functions;
  std::string failure;  ///< of a module that is there
};

/// The folder of the program, or of the Python module, that this code is in.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&describe_parquet), &info) == 0 ||
      info.dli_fname == nullptr) {
    return {};
  }
  std::error_code error;
  // A program that was found on the PATH is named by the first word of its command line.
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path library(info.dli_fname);
  const bool is_library = library.extension() == ".so";
  return (is_library || error ? library : program).parent_path();
}

template <class Function>
void find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
}

void* open_module(std::string& failure) {
  const std::filesystem::path folder = own_folder();
  // Programs are built in the build folder and its folder tests, and installed in bin.
  for (const char* const beside : {".", "..", "../" BRAID_LIBRARY_DIR "/braid"}) {
    const std::filesystem::path path = folder / beside / kModuleName;
    if (!folder.empty() && std::filesystem::exists(path)) {
      void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      failure = handle == nullptr ? dlerror() : "";
      return handle;
    }
  }
  return dlopen(std::string(kModuleName).c_str(), RTLD_NOW | RTLD_LOCAL);
}

/// Loaded once, and never unloaded: the library has threads.
const LoadedModule& loaded_module() {
  static const LoadedModule kModule = [] {
    LoadedModule loaded;
    if (void* const handle = open_module(loaded.failure)) {
      find(handle, kOpenParquet, loaded.functions.open);
      find(handle, kDescribeParquet, loaded.functions.describe);
      check(loaded.functions.open != nullptr && loaded.functions.describe != nullptr,
            "{} is of another build", kModuleName);
    }
    return loaded;
  }();
  return kModule;
}

const ParquetModule& module_for(const std::string& path) {
  const LoadedModule& module = loaded_module();
  if (module.functions.open != nullptr) {
    return module.functions;
  }
  if (!module.failure.empty()) {
    throw_data_error("'{}' cannot be read: the library for Parquet does not load: {}", path,
                     module.failure);
  }
  throw_data_error(
      "'{}' is a Parquet file, which this build of braid does not read: run scripts/fetch_arrow.sh "
      "and build again, or write its text as JSONL (docs/data.md)",
      path);
}

}  // namespace

bool is_parquet(std::string_view path) {
  return path.ends_with(".parquet");
}

ParquetFile::ParquetFile(std::string path, const ParquetColumns& columns)
    : path_(std::move(path)), size_bytes_(PieceFile(path_).size_bytes()) {
  const ParquetModule& module = module_for(path_);
  try {
    module.open(path_, columns, rows_);
  } catch (const std::exception& error) {
    throw_data_error("'{}' cannot be read as Parquet: {}", path_, error.what());
  }
}

bool ParquetFile::next(std::optional<std::string_view>& text) {
  try {
    if (!rows_->next(text)) {
      return false;
    }
  } catch (const std::exception& error) {
    throw_data_error("'{}' after row {}: its data are damaged ({})", path_, row_, error.what());
  }
  ++row_;
  return true;
}

int64_t ParquetFile::read_bytes() const {
  const double part = static_cast<double>(row_) / static_cast<double>(num_rows());
  return row_ == num_rows() ? size_bytes_
                            : static_cast<int64_t>(part * static_cast<double>(size_bytes_));
}

std::string describe_parquet() {
  const LoadedModule& module = loaded_module();
  if (module.functions.describe != nullptr) {
    return module.functions.describe();
  }
  return module.failure.empty()
             ? "missing (reads *.parquet); run scripts/fetch_arrow.sh and build again"
             : "does not load: " + module.failure;
}

}  // namespace braid
