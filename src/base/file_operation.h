#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace braid {

/// A call of the system on a file, for the lifetime of the object. It may never return, because the
/// file's storage is frozen (NFS without its server): then other threads can see which one it is.
/// Costs two locks of a mutex and no memory.
class FileOperation {
 public:
  /// `what`: "fsync of"; `path` must outlive the object.
  FileOperation(std::string_view what, std::string_view path);
  ~FileOperation();
  FileOperation(const FileOperation&) = delete;
  FileOperation& operator=(const FileOperation&) = delete;

 private:
  friend class FileOperations;

  std::string_view what_;
  std::string_view path_;
  std::chrono::steady_clock::time_point begin_;
  // Neighbours in the list of all of this process, ordered by their begins.
  FileOperation* before_ = nullptr;
  FileOperation* after_ = nullptr;
};

struct LongestFileOperation {
  std::string name;  ///< "fsync of '/data/x'"
  std::chrono::nanoseconds duration{};
};

/// The operation of this process that has lasted longest; nullopt if there is none.
std::optional<LongestFileOperation> longest_file_operation();

/// For tests: sets a function that each operation calls when it begins, on its own thread. It may
/// block, as frozen storage does. An empty function removes it.
using FileOperationHook = std::function<void(std::string_view what, std::string_view path)>;
void set_file_operation_hook(FileOperationHook hook);

}  // namespace braid
