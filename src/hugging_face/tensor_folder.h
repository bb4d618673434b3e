#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors.h"
#include "hugging_face/companions.h"

namespace braid {

/// The tensors of a Hugging Face folder: model.safetensors, or the files that
/// model.safetensors.index.json names, all open. Immutable.
class HfTensorFolder {
 public:
  struct Place {
    const SafetensorsFile* file = nullptr;
    const TensorEntry* entry = nullptr;
  };

  /// Throws DataError naming the file if there is none, if one cannot be read or is not valid
  /// safetensors, and if the index is invalid or disagrees with its files.
  explicit HfTensorFolder(std::string folder);

  const std::string& folder() const { return folder_; }
  std::optional<Place> find(std::string_view name) const;
  std::vector<std::string> names() const;
  size_t num_files() const { return files_.size(); }

 private:
  void read_index(const std::string& index_path);
  void add_file(const std::string& path);

  std::string folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::unordered_map<std::string, Place> places_;
};

/// Splits tensors over files, in order: each file gets as many tensors as fit `max_shard_bytes`, at
/// least one. Returns their indices by file.
std::vector<std::vector<size_t>> plan_shards(std::span<const TensorInfo> tensors,
                                             int64_t max_shard_bytes);

/// Names of the files that HfFolderWriter writes.
struct HfFileNames {
  std::string weights = "model";  ///< "model.safetensors", "model-00001-of-00002.safetensors"
  std::string config = "config.json";
};

/// Writes a Hugging Face folder from front to back. The folder appears under its path at `finish`,
/// complete and durable; without `finish` it does not appear.
class HfFolderWriter {
 public:
  /// Throws ConfigError if `folder` exists and is not an empty folder, DataError if a system call
  /// fails.
  HfFolderWriter(const std::string& folder, std::vector<TensorInfo> tensors,
                 int64_t max_shard_bytes, HfFileNames names = {});
  ~HfFolderWriter();
  HfFolderWriter(const HfFolderWriter&) = delete;
  HfFolderWriter& operator=(const HfFolderWriter&) = delete;

  /// The next bytes of the current tensor, in the order announced.
  void write(std::span<const std::byte> bytes);
  /// After the bytes of each tensor.
  void end_tensor();
  /// Writes the configuration, copies the files of `companions`, and publishes the folder.
  void finish(std::string_view config, const HfCompanions& companions = {});

  size_t num_files() const { return shards_.size(); }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  std::string file_name(size_t shard) const;
  void open_shard();
  std::string index_json() const;

  std::string folder_;
  HfFileNames names_;
  std::string temporary_;  // empty once there is nothing to remove
  std::vector<TensorInfo> tensors_;
  std::vector<std::vector<size_t>> shards_;
  std::optional<SafetensorsWriter> writer_;  // of the current shard
  size_t shard_ = 0;
  size_t num_ended_ = 0;  // tensors of the current shard
  int64_t size_bytes_ = 0;
};

}  // namespace braid
