#include "hugging_face/tensor_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/checkpoint_folder.h"

namespace braid {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = int64_t{256} << 20;
constexpr size_t kMaxQuotedBytes = 80;

int64_t tensor_bytes(const TensorInfo& tensor) {
  return tensor.shape.num_elems() * static_cast<int64_t>(dtype_bytes(tensor.dtype));
}

json parse_index(const std::string& path) {
  json root = parse_json(read_text_file(path, kMaxIndexBytes), fmt::format("'{}'", path));
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    throw_data_error("'{}' has no \"weight_map\"", path);
  }
  return root;
}

/// The file that holds a tensor according to the index: a name in the folder of the index, without
/// a path.
std::string file_of(const std::string& path, const std::string& tensor, const json& value) {
  const std::string name = value.is_string() ? value.get<std::string>() : "";
  if (name.empty() || name.starts_with('.') || name.find('/') != std::string::npos) {
    throw_data_error("'{}' does not name a file beside it for the tensor {}", path,
                     quote(tensor, kMaxQuotedBytes));
  }
  return name;
}

/// Removes a trailing slash, so that sibling names can be made from it.
std::string trimmed(const std::string& folder) {
  fs::path path = fs::absolute(folder).lexically_normal();
  return path.has_filename() ? path.string() : path.parent_path().string();
}

void check_free(const std::string& folder) {
  std::error_code error;
  if (fs::exists(folder, error) && !(is_folder(folder) && fs::is_empty(folder, error))) {
    throw_config_error("'{}' exists already; give the name of a folder that does not", folder);
  }
}

}  // namespace

HfTensorFolder::HfTensorFolder(std::string folder) : folder_(std::move(folder)) {
  const std::string index = fmt::format("{}/{}", folder_, kIndexFile);
  const std::string single = fmt::format("{}/{}", folder_, kSingleFile);
  if (fs::exists(index)) {
    read_index(index);
  } else if (fs::exists(single)) {
    add_file(single);
  } else {
    throw_data_error("'{}' holds neither {} nor {}", folder_, kSingleFile, kIndexFile);
  }
}

void HfTensorFolder::read_index(const std::string& index_path) {
  const json root = parse_index(index_path);
  std::set<std::string> files;
  for (const auto& [tensor, file] : root["weight_map"].items()) {
    files.insert(file_of(index_path, tensor, file));
  }
  for (const std::string& file : files) {
    add_file(fmt::format("{}/{}", folder_, file));
  }
  for (const auto& [tensor, file] : root["weight_map"].items()) {
    const std::optional<Place> place = find(tensor);
    const std::string path = fmt::format("{}/{}", folder_, file.get<std::string>());
    if (!place || place->file->path() != path) {
      throw_data_error("'{}' says that the tensor {} is in '{}', which does not have it",
                       index_path, quote(tensor, kMaxQuotedBytes), path);
    }
  }
}

void HfTensorFolder::add_file(const std::string& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (const TensorEntry& entry : files_.back()->tensors()) {
    const auto [other, is_new] =
        places_.emplace(entry.name, Place{.file = files_.back().get(), .entry = &entry});
    if (!is_new) {
      throw_data_error("the tensor {} is both in '{}' and in '{}'",
                       quote(entry.name, kMaxQuotedBytes), other->second.file->path(), path);
    }
  }
}

std::optional<HfTensorFolder::Place> HfTensorFolder::find(std::string_view name) const {
  const auto found = places_.find(std::string(name));
  return found == places_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> HfTensorFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) {
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::vector<size_t>> plan_shards(std::span<const TensorInfo> tensors,
                                             int64_t max_shard_bytes) {
  std::vector<std::vector<size_t>> shards(1);
  int64_t size_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t more_bytes = tensor_bytes(tensors[i]);
    if (!shards.back().empty() && size_bytes + more_bytes > max_shard_bytes) {
      shards.emplace_back();
      size_bytes = 0;
    }
    shards.back().push_back(i);
    size_bytes += more_bytes;
  }
  return shards;
}

HfFolderWriter::HfFolderWriter(const std::string& folder, std::vector<TensorInfo> tensors,
                               int64_t max_shard_bytes, HfFileNames names)
    : folder_(trimmed(folder)),
      names_(std::move(names)),
      tensors_(std::move(tensors)),
      shards_(plan_shards(tensors_, max_shard_bytes)) {
  check_free(folder_);
  const fs::path path(folder_);
  make_folders(path.parent_path().string());
  temporary_ = transient_path(path.parent_path().string(), path.filename().string(), "tmp");
  make_folders(temporary_);
  for (const TensorInfo& tensor : tensors_) {
    size_bytes_ += tensor_bytes(tensor);
  }
  open_shard();
}

HfFolderWriter::~HfFolderWriter() {
  if (!temporary_.empty()) {
    writer_.reset();
    remove_folder(temporary_);
  }
}

std::string HfFolderWriter::file_name(size_t shard) const {
  return shards_.size() == 1 ? fmt::format("{}.safetensors", names_.weights)
                             : fmt::format("{}-{:05}-of-{:05}.safetensors", names_.weights,
                                           shard + 1, shards_.size());
}

void HfFolderWriter::open_shard() {
  std::vector<TensorInfo> tensors;
  for (const size_t index : shards_[shard_]) {
    tensors.push_back(tensors_[index]);
  }
  // Loaders ask for this key: "pt" means row-major.
  writer_.emplace(fmt::format("{}/{}", temporary_, file_name(shard_)), tensors,
                  std::map<std::string, std::string>{{"format", "pt"}});
  num_ended_ = 0;
}

void HfFolderWriter::write(std::span<const std::byte> bytes) {
  writer_->write(bytes);
}

void HfFolderWriter::end_tensor() {
  if (++num_ended_ < shards_[shard_].size()) {
    return;
  }
  writer_->finish();
  writer_.reset();
  if (++shard_ < shards_.size()) {
    open_shard();
  }
}

std::string HfFolderWriter::index_json() const {
  ordered_json::object_t files;
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    for (const size_t index : shards_[shard]) {
      // The writers of the files have refused names that occur twice.
      static_cast<std::vector<ordered_json::object_t::value_type>&>(files).emplace_back(
          tensors_[index].name, file_name(shard));
    }
  }
  const ordered_json root = {{"metadata", {{"total_size", size_bytes_}}}, {"weight_map", files}};
  return root.dump(2) + "\n";
}

void HfFolderWriter::finish(std::string_view config, const HfCompanions& companions) {
  check(shard_ == shards_.size(), "{} of {} files of '{}' are written", shard_, shards_.size(),
        folder_);
  if (shards_.size() > 1) {
    write_file_atomically(fmt::format("{}/{}.safetensors.index.json", temporary_, names_.weights),
                          index_json());
  }
  write_file_atomically(temporary_ + "/" + names_.config, config);
  copy_companions(companions, temporary_);
  sync_directory(temporary_);
  move_folder(temporary_, folder_);  // takes the place of an empty folder
  temporary_.clear();
  sync_directory(fs::path(folder_).parent_path().string());
}

}  // namespace braid
