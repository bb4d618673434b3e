#include "base/file_operation.h"

#include <fmt/core.h>

#include <memory>
#include <mutex>
#include <utility>

namespace braid {

/// Those that have begun and not ended. One list per process, as file systems are the process's:
/// an operation deep inside a library need not be handed anything.
class FileOperations {
 public:
  // Never destroyed: threads that are stuck outlive `main`.
  static FileOperations& of_process() {
    static auto* all = new FileOperations;
    return *all;
  }

  std::shared_ptr<const FileOperationHook> add(FileOperation& operation) {
    const std::scoped_lock lock(mutex_);
    operation.begin_ = std::chrono::steady_clock::now();
    operation.before_ = last_;
    (last_ != nullptr ? last_->after_ : first_) = &operation;
    last_ = &operation;
    return hook_;
  }

  void remove(const FileOperation& operation) {
    const std::scoped_lock lock(mutex_);
    (operation.before_ != nullptr ? operation.before_->after_ : first_) = operation.after_;
    (operation.after_ != nullptr ? operation.after_->before_ : last_) = operation.before_;
  }

  std::optional<LongestFileOperation> longest() {
    const std::scoped_lock lock(mutex_);
    if (first_ == nullptr) {
      return std::nullopt;
    }
    return LongestFileOperation{.name = fmt::format("{} '{}'", first_->what_, first_->path_),
                                .duration = std::chrono::steady_clock::now() - first_->begin_};
  }

  void set_hook(FileOperationHook hook) {
    const std::scoped_lock lock(mutex_);
    hook_ = hook ? std::make_shared<const FileOperationHook>(std::move(hook)) : nullptr;
  }

 private:
  std::mutex mutex_;
  FileOperation* first_ = nullptr;
  FileOperation* last_ = nullptr;
  std::shared_ptr<const FileOperationHook> hook_;
};

FileOperation::FileOperation(std::string_view what, std::string_view path)
    : what_(what), path_(path) {
  if (const auto hook = FileOperations::of_process().add(*this)) {
    (*hook)(what, path);
  }
}

FileOperation::~FileOperation() {
  FileOperations::of_process().remove(*this);
}

std::optional<LongestFileOperation> longest_file_operation() {
  return FileOperations::of_process().longest();
}

void set_file_operation_hook(FileOperationHook hook) {
  FileOperations::of_process().set_hook(std::move(hook));
}

}  // namespace braid
