#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/shape.h"
#include "checkpoint/safetensors.h"

/// Training state on disk. A checkpoint is a folder:
///   step_00000100/model.safetensors      weights by parameter name, the fp32 main ones where these
///                                        exist
///   step_00000100/optimizer.safetensors  optimizer state, by names that the trainer gives
///   step_00000100/state.json             CheckpointState; size and XXH3 of each file and of itself
/// and beside these folders lies the file `latest` with the name of the one written last.
///
/// A checkpoint is written under a temporary name, made durable, then renamed: whoever is killed at
/// whatever moment, each folder named step_* is complete, and `latest` names one of them.
namespace braid {

/// What a run needs to go on, besides tensors. Random numbers follow from seed and step.
struct CheckpointState {
  int64_t step = 0;  ///< optimizer updates done
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
  int64_t seed = 0;
  std::string model;                         ///< description of the model, for people
  std::string config;                        ///< the resolved run configuration, as TOML
  std::map<std::string, std::string> extra;  ///< whatever else the trainer keeps, by name

  friend bool operator==(const CheckpointState&, const CheckpointState&) = default;
};

/// A tensor in host memory; the bytes belong to somebody else.
struct NamedTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> data;
};

struct SaveOptions {
  int64_t keep = 2;  ///< newest checkpoints that stay, the new one included; 0: all
  /// For tests: called before each step of the publication, with its name. It may throw.
  std::function<void(std::string_view step)> before_step;
};

/// Writes a checkpoint into `folder`, which is made if needed, and then removes the oldest ones
/// beyond `keep`, and what killed runs have left. Returns the path of the new checkpoint. If there
/// is one of the same step already, it is replaced in one instant. One process may save into a
/// folder at a time.
/// Throws DataError if the system refuses anything; the checkpoints that were there stay as they
/// were.
std::string save_checkpoint(const std::string& folder, const CheckpointState& state,
                            std::span<const NamedTensor> weights,
                            std::span<const NamedTensor> optimizer, const SaveOptions& options);

/// Path of the checkpoint that `folder`/latest names; if that file is missing or names nothing that
/// exists, of the one with the most steps; nothing if there is none, or no folder. Its content is
/// not looked at: a damaged newest checkpoint is an error of LoadedCheckpoint, not a reason to go
/// back silently. Throws DataError if the folder cannot be read.
std::optional<std::string> find_latest_checkpoint(const std::string& folder);

/// A checkpoint, checked byte by byte.
class LoadedCheckpoint {
 public:
  /// `path` is the folder of the checkpoint itself. Throws DataError naming the file, what was
  /// expected and what was found, unless every file has the recorded size and checksum.
  explicit LoadedCheckpoint(const std::string& path);

  const std::string& path() const { return path_; }
  const CheckpointState& state() const { return state_; }
  const SafetensorsFile& weights() const { return weights_; }
  const SafetensorsFile& optimizer() const { return optimizer_; }

 private:
  LoadedCheckpoint(const std::string& path, CheckpointState state);

  std::string path_;
  CheckpointState state_;
  SafetensorsFile weights_;
  SafetensorsFile optimizer_;
};

}  // namespace braid
