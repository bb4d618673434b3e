#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "base/temp_folder.h"
#include "checkpoint/checkpoint.h"

namespace braid {

/// A temporary folder in memory where there is such a thing: a save waits for the disk some ten
/// times, and tests save hundreds of times.
class MemoryFolder : public TempFolder {
 public:
  MemoryFolder() : TempFolder(parent()) {}

 private:
  static std::filesystem::path parent() {
    const char* memory = "/dev/shm";
    return ::access(memory, W_OK) == 0 ? memory : std::filesystem::temp_directory_path();
  }
};

/// A small training state whose every byte depends on the step.
struct SampleTraining {
  explicit SampleTraining(int64_t step) {
    state.step = step;
    state.consumed_samples = step * 8;
    state.consumed_tokens = step * 8 * 1024;
    state.seed = -5;
    state.model = "llama, 2 layers";
    state.config = "[train]\nsteps = 10  # \"quoted\" \\ and \xc3\xbc\n";
    state.extra = {{"best_loss", "3.25"}, {"empty", ""}};
    for (int i = 0; i < 12; ++i) {
      matrix.push_back(static_cast<float>(step) + 0.25F * static_cast<float>(i));
      moment.push_back(-matrix.back());
    }
  }

  std::vector<NamedTensor> weights() const {
    return {{"wte", DType::kF32, {3, 4}, std::as_bytes(std::span(matrix))},
            {"norm", DType::kF32, {2}, std::as_bytes(std::span(matrix)).first(8)}};
  }
  std::vector<NamedTensor> optimizer() const {
    return {{"wte.exp_avg", DType::kF32, {3, 4}, std::as_bytes(std::span(moment))}};
  }
  /// All of it from one writer.
  std::vector<CheckpointShard> whole() const {
    std::vector<CheckpointShard> shards(1);
    shards[0] = {stream_of(weights()), stream_of(optimizer())};
    return shards;
  }
  /// Three writers: the left and the right half of the matrix, beside them the norm and two parts
  /// of the moment, which are no rows.
  std::vector<CheckpointShard> cut() const {
    std::vector<CheckpointShard> shards(3);
    shards[0] = {pieces_of(matrix, {{"wte", {0, 3, 2}}}), {}};
    shards[1] = {pieces_of(matrix, {{"wte", {2, 3, 2}}}),
                 pieces_of(moment, {{"wte.exp_avg", {0, 1, 5}}})};
    shards[2] = {stream_of({weights()[1]}), pieces_of(moment, {{"wte.exp_avg", {5, 1, 7}}})};
    return shards;
  }
  std::string save(const std::string& folder, const SaveOptions& options = {}) const {
    return save_checkpoint(folder, state, whole(), options);
  }
  std::string save_cut(const std::string& folder, const SaveOptions& options = {}) const {
    return save_checkpoint(folder, state, cut(), options);
  }
  /// As a run that goes on meanwhile: another thread writes from a copy, while the original
  /// changes.
  std::string save_behind(const std::string& folder, const SaveOptions& options = {}) {
    std::future<std::string> saved =
        std::async(std::launch::async,
                   [copy = *this, &folder, &options] { return copy.save_cut(folder, options); });
    std::vector<float> before = matrix;
    std::ranges::fill(matrix, -1.0F);
    try {
      std::string path = saved.get();
      matrix = std::move(before);
      return path;
    } catch (...) {
      matrix = std::move(before);
      throw;
    }
  }
  bool equals(const LoadedCheckpoint& loaded) const {
    return loaded.state() == state && loaded.index().tensors.size() == 3 &&
           read(loaded, "wte", {3, 4}) == matrix &&
           read(loaded, "norm", {2}) == std::vector<float>{matrix[0], matrix[1]} &&
           read(loaded, "wte.exp_avg", {3, 4}) == moment;
  }

  /// All elements of a tensor.
  static std::vector<float> read(const LoadedCheckpoint& loaded, const std::string& name,
                                 const Shape& shape) {
    std::vector<float> values(static_cast<size_t>(shape.num_elems()));
    loaded.read(loaded.tensor(name, DType::kF32, shape), 0,
                std::as_writable_bytes(std::span(values)));
    return values;
  }

  CheckpointState state;
  std::vector<float> matrix;
  std::vector<float> moment;

 private:
  /// Parts of a matrix of 3 x 4.
  static TensorStream pieces_of(const std::vector<float>& from,
                                const std::vector<std::pair<std::string, PieceRange>>& parts) {
    TensorStream stream;
    std::vector<float> values;
    for (const auto& [name, range] : parts) {
      stream.pieces.push_back({name, DType::kF32, {3, 4}, range});
      for (int64_t run = 0; run < range.num_runs; ++run) {
        const auto begin = from.begin() + range.begin + run * 4;
        values.insert(values.end(), begin, begin + range.run_elems);
      }
    }
    stream.send = [values](const TensorStream::Write& write) {
      write(std::as_bytes(std::span(values)));
    };
    return stream;
  }
};

}  // namespace braid
