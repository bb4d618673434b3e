#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <future>
#include <mutex>
#include <sstream>
#include <utility>

#include "base/checksum.h"
#include "base/errors.h"
#include "base/file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/state_file.h"

namespace braid {
namespace {

constexpr int64_t kMaxLatestBytes = 4096;

/// A file to write, and its record after writing.
struct ShardFile {
  std::string name;
  const TensorStream* stream = nullptr;
  FileRecord record = {};
};

/// Names the files of one kind over all shards that have one: "model.safetensors" for one writer,
/// "model-00001-of-00004.safetensors" for several.
void name_files(std::string_view kind, std::span<const CheckpointShard> shards,
                TensorStream CheckpointShard::*stream, std::vector<std::vector<ShardFile>>& files) {
  const auto has_any = [&](const CheckpointShard& shard) {
    return !(shard.*stream).pieces.empty();
  };
  const auto count = std::count_if(shards.begin(), shards.end(), has_any);
  int number = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (has_any(shards[i])) {
      ++number;
      files[i].push_back(
          {.name = count == 1 ? fmt::format("{}.safetensors", kind)
                              : fmt::format("{}-{:05}-of-{:05}.safetensors", kind, number, count),
           .stream = &(shards[i].*stream)});
    }
  }
}

/// By shard: its files, which are written one after the other.
std::vector<std::vector<ShardFile>> files_of(std::span<const CheckpointShard> shards) {
  std::vector<std::vector<ShardFile>> files(shards.size());
  name_files("model", shards, &CheckpointShard::weights, files);
  name_files("optimizer", shards, &CheckpointShard::optimizer, files);
  return files;
}

/// One save; everything it has written is removed unless it is published.
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

  std::string run(std::span<const CheckpointShard> shards) {
    std::vector<std::vector<ShardFile>> files = files_of(shards);
    const std::string index = index_of(files);
    const bool leads = options_.together.leads;
    if (leads) {
      prepare();
    }
    target_ = all_gather("the folder of a checkpoint", temporary_).front();
    write_shards(files);
    collect_records(files);
    if (leads) {
      write_index(index);
      write_state();
      publish();
      prune();
    }
    all_gather("a checkpoint", {});
    return path_;
  }

 private:
  /// Weights of all shards first, as in the order of files.
  static std::string index_of(const std::vector<std::vector<ShardFile>>& files) {
    std::vector<const ShardFile*> all;
    for (const std::vector<ShardFile>& shard : files) {
      for (const ShardFile& file : shard) {
        all.push_back(&file);
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const ShardFile* a, const ShardFile* b) { return a->name < b->name; });
    std::vector<std::string> names;
    std::vector<std::span<const TensorPiece>> pieces;
    for (const ShardFile* const file : all) {
      names.push_back(file->name);
      pieces.emplace_back(file->stream->pieces);
    }
    return print_index(make_index(std::move(names), pieces));
  }

  std::vector<std::string> all_gather(std::string_view name, std::string bytes) const {
    const auto& gather = options_.together.all_gather;
    return gather ? gather(name, std::move(bytes)) : std::vector<std::string>{std::move(bytes)};
  }

  void begin(std::string_view step) {
    if (options_.before_step) {
      const std::lock_guard lock(step_mutex_);
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

  void write_shards(std::vector<std::vector<ShardFile>>& shards) {
    std::vector<std::future<void>> writers;
    for (size_t i = 1; i < shards.size(); ++i) {
      writers.push_back(
          std::async(std::launch::async, [this, &shard = shards[i]] { write_shard(shard); }));
    }
    std::exception_ptr error;
    const auto keep_first = [&](const auto& call) {
      try {
        call();
      } catch (...) {
        error = error ? error : std::current_exception();
      }
    };
    if (!shards.empty()) {
      keep_first([&] { write_shard(shards.front()); });
    }
    for (std::future<void>& writer : writers) {
      keep_first([&] { writer.get(); });
    }
    if (error) {
      std::rethrow_exception(error);
    }
  }

  /// Collects the records of the files of all processes, one line each.
  void collect_records(const std::vector<std::vector<ShardFile>>& shards) {
    std::string own;
    for (const std::vector<ShardFile>& shard : shards) {
      for (const ShardFile& file : shard) {
        own += file.stream->send ? fmt::format("{} {} {}\n", file.record.name,
                                               file.record.size_bytes, file.record.checksum)
                                 : "";
      }
    }
    const std::vector<std::string> of_all = all_gather("the files of a checkpoint", std::move(own));
    for (const std::string& records : of_all) {
      std::istringstream lines(records);
      for (FileRecord record; lines >> record.name >> record.size_bytes >> record.checksum;) {
        stored_.files.push_back(record);
      }
    }
  }

  void write_shard(std::vector<ShardFile>& files) {
    for (ShardFile& file : files) {
      if (!file.stream->send) {
        continue;
      }
      begin(file.name);
      std::vector<TensorInfo> tensors;
      for (const TensorPiece& piece : file.stream->pieces) {
        tensors.push_back({piece_name(piece.tensor, piece.shape, piece.range), piece.dtype,
                           piece_shape(piece.shape, piece.range)});
      }
      // Loaders of other systems require this key: "pt" means row-major, weights as [out, in].
      SafetensorsWriter writer(fmt::format("{}/{}", target_, file.name), tensors,
                               {{"format", "pt"}});
      file.stream->send([&](std::span<const std::byte> bytes) { writer.write(bytes); });
      writer.finish();
      file.record = {file.name, writer.size_bytes(), writer.checksum()};
    }
  }

  void write_index(const std::string& index) {
    begin(kIndexFile);
    write_file_atomically(fmt::format("{}/{}", temporary_, kIndexFile), index);
    stored_.files.push_back({std::string(kIndexFile), static_cast<int64_t>(index.size()),
                             checksum_of(std::as_bytes(std::span(index)))});
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
    for (const CheckpointEntry& entry : superfluous()) {
      // Renames first: a process killed during removal must not leave an incomplete checkpoint.
      begin("move old checkpoint to trash");
      const std::string trash = transient_path(folder_, checkpoint_name(entry.step), "trash");
      move_folder(entry.path, trash);
      sync_directory(folder_);
      begin("remove trash");
      remove_folder(trash);
    }
  }

  /// All but the newest ones, and the newest confirmed one.
  std::vector<CheckpointEntry> superfluous() const {
    if (options_.keep == 0) {
      return {};
    }
    std::vector<CheckpointEntry> others = list_checkpoints(folder_);  // by ascending step
    std::erase_if(others, [&](const CheckpointEntry& entry) { return entry.path == path_; });
    const auto confirmed = std::find_if(others.rbegin(), others.rend(), [&](const auto& entry) {
      return options_.last_finite_step && entry.step < *options_.last_finite_step;
    });
    const std::string stays = confirmed == others.rend() ? "" : confirmed->path;
    others.resize(others.size() - std::min(static_cast<size_t>(options_.keep - 1), others.size()));
    std::erase_if(others, [&](const CheckpointEntry& entry) { return entry.path == stays; });
    return others;
  }

  std::string folder_;
  std::string name_;
  std::string path_;
  const SaveOptions& options_;
  std::mutex step_mutex_;
  std::string temporary_;  // in the leader; empty if there is nothing to remove
  std::string target_;     // the same folder while it is written, in every process
  StoredState stored_;
};

}  // namespace

TensorStream stream_of(std::vector<NamedTensor> tensors) {
  TensorStream stream;
  for (const NamedTensor& tensor : tensors) {
    const auto bytes = static_cast<int64_t>(tensor.data.size());
    check(bytes == tensor.shape.num_elems() * static_cast<int64_t>(dtype_bytes(tensor.dtype)),
          "tensor {} of {}{} comes with {} bytes", tensor.name, dtype_name(tensor.dtype),
          to_string(tensor.shape), bytes);
    stream.pieces.push_back({tensor.name, tensor.dtype, tensor.shape, whole_range(tensor.shape)});
  }
  stream.send = [tensors = std::move(tensors)](const TensorStream::Write& write) {
    for (const NamedTensor& tensor : tensors) {
      write(tensor.data);
    }
  };
  return stream;
}

std::string save_checkpoint(const std::string& folder, const CheckpointState& state,
                            std::span<const CheckpointShard> shards, const SaveOptions& options) {
  check(state.step >= 0 && options.keep >= 0, "step {} and keep {} must not be negative",
        state.step, options.keep);
  return Save(folder, state, options).run(shards);
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

}  // namespace braid
