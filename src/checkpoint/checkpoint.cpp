#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/state_file.h"

namespace braid {
namespace {

constexpr int64_t kMaxStateBytes = int64_t{64} << 20;
constexpr int64_t kMaxLatestBytes = 4096;

/// One save, step by step; whatever it has written is removed unless it is published.
class Save {
 public:
  Save(const std::string& folder, const CheckpointState& state, const SaveOptions& options)
      : folder_(folder),
        name_(checkpoint_name(state.step)),
        path_(folder + "/" + name_),
        options_(options) {
    stored_.state = state;
  }
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;
  ~Save() {
    if (!temporary_.empty()) {
      remove_folder(temporary_);
    }
  }

  std::string run(std::span<const NamedTensor> weights, std::span<const NamedTensor> optimizer) {
    prepare();
    write_tensors(kWeightsFile, weights);
    write_tensors(kOptimizerFile, optimizer);
    write_state();
    publish();
    prune();
    return path_;
  }

 private:
  void begin(std::string_view step) const {
    if (options_.before_step) {
      options_.before_step(step);
    }
  }

  void prepare() {
    begin("make folder");
    make_folders(folder_);
    begin("remove leftovers");
    remove_leftovers(folder_);
    begin("make temporary folder");
    temporary_ = transient_path(folder_, name_, "tmp");
    make_folders(temporary_);
  }

  void write_tensors(std::string_view file_name, std::span<const NamedTensor> tensors) {
    begin(file_name);
    std::vector<TensorInfo> infos;
    for (const NamedTensor& tensor : tensors) {
      const auto bytes = static_cast<int64_t>(tensor.data.size());
      check(bytes == tensor.shape.num_elems() * static_cast<int64_t>(dtype_bytes(tensor.dtype)),
            "tensor {} of {}{} comes with {} bytes", tensor.name, dtype_name(tensor.dtype),
            to_string(tensor.shape), bytes);
      infos.push_back({tensor.name, tensor.dtype, tensor.shape});
    }
    // Loaders of other systems ask for this key: "pt" means row-major, weights as [out, in].
    SafetensorsWriter writer(fmt::format("{}/{}", temporary_, file_name), infos,
                             {{"format", "pt"}});
    for (const NamedTensor& tensor : tensors) {
      writer.write(tensor.data);
    }
    writer.finish();
    stored_.files.push_back({std::string(file_name), writer.size_bytes(), writer.checksum()});
  }

  void write_state() {
    begin(kStateFile);
    write_file_atomically(fmt::format("{}/{}", temporary_, kStateFile), print_state(stored_));
    begin("sync temporary folder");
    sync_directory(temporary_);
  }

  void publish() {
    begin("publish");
    if (is_folder(path_)) {
      exchange_folders(temporary_, path_);
    } else {
      move_folder(temporary_, path_);
      temporary_.clear();
    }
    begin("sync folder");
    sync_directory(folder_);
    begin("name latest");
    write_file_atomically(fmt::format("{}/{}", folder_, kLatestFile), name_ + "\n");
  }

  void prune() {
    if (options_.keep == 0) {
      return;
    }
    std::vector<CheckpointEntry> others = list_checkpoints(folder_);
    std::erase_if(others, [&](const CheckpointEntry& entry) { return entry.path == path_; });
    const auto num_kept = std::min(static_cast<size_t>(options_.keep - 1), others.size());
    others.resize(others.size() - num_kept);
    for (const CheckpointEntry& entry : others) {
      // First out of sight: a process killed while it removes files must not leave half of them.
      begin("move old checkpoint to trash");
      const std::string trash = transient_path(folder_, checkpoint_name(entry.step), "trash");
      move_folder(entry.path, trash);
      sync_directory(folder_);
      begin("remove trash");
      remove_folder(trash);
    }
  }

  std::string folder_;
  std::string name_;
  std::string path_;
  const SaveOptions& options_;
  std::string temporary_;  // empty once there is nothing to remove
  StoredState stored_;
};

void check_file(const std::string& folder, const FileRecord& expected) {
  const std::string path = folder + "/" + expected.name;
  const MappedFile file(path);
  const auto found_bytes = static_cast<int64_t>(file.bytes().size());
  if (found_bytes != expected.size_bytes) {
    throw_data_error("'{}' is damaged: it has {} bytes, expected {}", path, found_bytes,
                     expected.size_bytes);
  }
  const std::string found = checksum_of(file.bytes());
  if (found != expected.checksum) {
    throw_data_error("'{}' is damaged: its XXH3 checksum is {}, expected {}", path, found,
                     expected.checksum);
  }
}

CheckpointState read_checked_state(const std::string& folder) {
  const std::string path = fmt::format("{}/{}", folder, kStateFile);
  StoredState stored = parse_state(read_text_file(path, kMaxStateBytes), path);
  for (const std::string_view name : {kWeightsFile, kOptimizerFile}) {
    const auto record = std::find_if(stored.files.begin(), stored.files.end(),
                                     [&](const FileRecord& file) { return file.name == name; });
    if (record == stored.files.end()) {
      throw_data_error("'{}' does not name the file {}", path, name);
    }
    check_file(folder, *record);
  }
  return std::move(stored.state);
}

}  // namespace

std::string save_checkpoint(const std::string& folder, const CheckpointState& state,
                            std::span<const NamedTensor> weights,
                            std::span<const NamedTensor> optimizer, const SaveOptions& options) {
  check(state.step >= 0 && options.keep >= 0, "step {} and keep {} must not be negative",
        state.step, options.keep);
  return Save(folder, state, options).run(weights, optimizer);
}

std::optional<std::string> find_latest_checkpoint(const std::string& folder) {
  const std::vector<CheckpointEntry> entries = list_checkpoints(folder);
  if (entries.empty()) {
    return std::nullopt;
  }
  const std::string pointer = fmt::format("{}/{}", folder, kLatestFile);
  std::error_code ignored;
  if (std::filesystem::exists(pointer, ignored)) {
    const std::string name = read_text_file(pointer, kMaxLatestBytes);
    for (const CheckpointEntry& entry : entries) {
      if (name == checkpoint_name(entry.step) + "\n") {
        return entry.path;
      }
    }
  }
  return entries.back().path;
}

LoadedCheckpoint::LoadedCheckpoint(const std::string& path)
    : LoadedCheckpoint(path, read_checked_state(path)) {}

LoadedCheckpoint::LoadedCheckpoint(const std::string& path, CheckpointState state)
    : path_(path),
      state_(std::move(state)),
      weights_(fmt::format("{}/{}", path, kWeightsFile)),
      optimizer_(fmt::format("{}/{}", path, kOptimizerFile)) {}

}  // namespace braid
