#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_index.h"

/// Training state on disk. A checkpoint is a folder:
///   step_00000100/model-00001-of-00004.safetensors      weights by parameter name, the fp32 main
///                                                       ones if they exist
///   step_00000100/optimizer-00001-of-00004.safetensors  optimizer state, by names that the trainer
///                                                       gives
///   step_00000100/index.json   TensorIndex: which file has which part of which tensor
///   step_00000100/state.json   CheckpointState; size and XXH3 of each file and of itself
/// and next to these folders the file `latest` contains the name of the newest one. A single
/// writer's files are model.safetensors and optimizer.safetensors. docs/checkpoints.md has
/// examples.
///
/// A checkpoint is written under a temporary name, made durable, then renamed. So even if a process
/// is killed at any time, each folder named step_* is complete, and `latest` names one of them.
namespace braid {

/// What a run needs to continue, besides tensors. Random numbers follow from seed and step.
struct CheckpointState {
  int64_t step = 0;  ///< optimizer updates done
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
  int64_t seed = 0;
  std::string model;                         ///< description of the model, for people
  std::string config;                        ///< the resolved run configuration, as TOML
  std::map<std::string, std::string> extra;  ///< other data of the trainer, by name

  friend bool operator==(const CheckpointState&, const CheckpointState&) = default;
};

/// The pieces of tensors in one file, and the source of their bytes. The bytes come in blocks, so
/// that no one has to hold all of them.
struct TensorStream {
  using Write = std::function<void(std::span<const std::byte> bytes)>;

  std::vector<TensorPiece> pieces;  ///< in the order of their bytes; empty: no file
  /// Empty: another process writes the file. Called once: hands the bytes of all pieces to `write`,
  /// in order, in blocks of any size, on one thread at a time. Returns when `write` has taken them;
  /// throws what `write` threw.
  std::function<void(const Write& write)> send;
};

/// What one writer puts into its own files.
struct CheckpointShard {
  TensorStream weights;
  TensorStream optimizer;
};

/// A tensor in host memory; does not own the bytes.
struct NamedTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> data;
};

/// Streams tensors that are already in memory. Throws InternalError for one with the wrong number
/// of bytes.
TensorStream stream_of(std::vector<NamedTensor> tensors);

/// Processes that write one checkpoint together, into a folder that all of them can access. Each
/// calls `save_checkpoint` with the same arguments, and with the streams of its own shards.
struct SaveTogether {
  bool leads = true;  ///< true in one process, which creates the folder and publishes it when all
                      ///< have written
  /// Sends bytes to all processes, and returns those of each, in the order of their shards. Empty:
  /// there is one process.
  std::function<std::vector<std::string>(std::string_view name, std::string bytes)> all_gather = {};
};

struct SaveOptions {
  int64_t keep = 2;  ///< number of newest checkpoints to keep, including the new one; 0: all
  /// The last step with a finite loss. It confirms the checkpoints of earlier steps, the newest of
  /// which stays whatever `keep` is: nobody knows yet whether training can go on from the new one.
  std::optional<int64_t> last_finite_step = std::nullopt;
  /// For tests: called before each step of the publication, with its name, by one thread at a time.
  /// It may throw.
  std::function<void(std::string_view step)> before_step = {};
  SaveTogether together = {};
};

/// Writes a checkpoint into `folder`, which is created if needed, each shard on its own thread.
/// Then removes the oldest ones beyond `keep`, and leftovers of killed runs. Returns the path of
/// the new checkpoint. An existing checkpoint of the same step is replaced atomically. One process,
/// or those of SaveTogether, may save into a folder at a time. Throws InternalError unless the
/// shards hold each element of their tensors once, DataError for errors of the system; existing
/// checkpoints are then unchanged.
std::string save_checkpoint(const std::string& folder, const CheckpointState& state,
                            std::span<const CheckpointShard> shards, const SaveOptions& options);

/// Path of the checkpoint that `folder`/latest names. If that file is missing or names a checkpoint
/// that does not exist, the checkpoint with the highest step; nullopt if there is none, or no
/// folder. Does not examine its content: LoadedCheckpoint reports a damaged newest checkpoint,
/// instead of silently using an older one. Throws DataError if the folder cannot be read.
std::optional<std::string> find_latest_checkpoint(const std::string& folder);

/// The record of a checkpoint's file at the time of writing.
struct FileRecord {
  std::string name;
  int64_t size_bytes = 0;
  std::string checksum;
};

/// A checkpoint, checked byte by byte, for any number of writers and files. Immutable.
class LoadedCheckpoint {
 public:
  using Needs = std::function<bool(std::string_view tensor)>;

  /// `path` is the folder of the checkpoint itself. Only opens files with tensors for which `needs`
  /// returns true; without it, all. Throws DataError naming the file, expected and found, unless
  /// each of them has the recorded size and checksum and agrees with the index. Each file is
  /// read by its own thread, which takes SequentialReader::kPartBytes, and stays open.
  explicit LoadedCheckpoint(const std::string& path, const Needs& needs = {});

  const std::string& path() const { return path_; }
  const CheckpointState& state() const { return state_; }
  /// The version of its format (state_file.h).
  int64_t version() const { return version_; }
  const TensorIndex& index() const { return index_; }
  /// The files of the index, in its order.
  std::span<const FileRecord> files() const { return files_; }

  /// Null if there is no such tensor.
  const StoredTensor* find(std::string_view name) const;
  /// Throws DataError if there is none, or if it has another dtype or shape.
  const StoredTensor& tensor(std::string_view name, DType dtype, const Shape& shape) const;
  /// Reads elements [begin, begin + out.size() / element size) of a needed tensor, row-major.
  /// Thread-safe. Throws InternalError for elements outside it.
  void read(const StoredTensor& tensor, int64_t begin, std::span<std::byte> out) const;

 private:
  void open(std::span<const FileRecord> recorded, const Needs& needs);
  void open_first_version(std::span<const FileRecord> recorded);
  void check_pieces(size_t file) const;

  std::string path_;
  CheckpointState state_;
  int64_t version_ = 0;
  TensorIndex index_;
  std::vector<FileRecord> files_;                         // by TensorIndex::files
  std::vector<std::unique_ptr<SafetensorsFile>> opened_;  // parallel to files_; null if not needed
  std::unordered_map<std::string_view, const StoredTensor*> by_name_;
};

}  // namespace braid
