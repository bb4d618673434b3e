#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
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
  std::string save(const std::string& folder, const SaveOptions& options = {}) const {
    return save_checkpoint(folder, state, weights(), optimizer(), options);
  }
  bool equals(const LoadedCheckpoint& loaded) const {
    return loaded.state() == state && loaded.weights().tensors().size() == 2 &&
           loaded.optimizer().tensors().size() == 1 &&
           same(loaded.weights().tensor("wte", DType::kF32, {3, 4}), matrix) &&
           same(loaded.weights().tensor("norm", DType::kF32, {2}), {matrix[0], matrix[1]}) &&
           same(loaded.optimizer().tensor("wte.exp_avg", DType::kF32, {3, 4}), moment);
  }

  CheckpointState state;
  std::vector<float> matrix;
  std::vector<float> moment;

 private:
  static bool same(std::span<const std::byte> bytes, const std::vector<float>& values) {
    return bytes.size() == values.size() * sizeof(float) &&
           std::memcmp(bytes.data(), values.data(), bytes.size()) == 0;
  }
};

}  // namespace braid
