#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "runtime/device.h"
#include "state/state_source.h"

namespace braid {

class Executor;

struct CausalModelOptions {
  int threads = 1;                         ///< on the CPU
  Device device = {};                      ///< a GPU computes in bfloat16, the CPU in float32
  std::string cache_folder = {};           ///< as in EngineOptions
  std::optional<int64_t> free_bytes = {};  ///< of the memory in which it runs; none: not checked
  bool computes_loss = false;              ///< for `loss`, which needs a program more
};

/// A trained model that gives the logits of the next token at each position of a token sequence.
/// The forward program is planned for a few sequence lengths (powers of two, and the longest), and
/// a sequence runs in the shortest one that holds it. Not thread-safe.
class CausalModel {
 public:
  /// `max_tokens`: of a sequence, at least 1. Throws ConfigError before anything is allocated if
  /// the model does not fit into `free_bytes`, with the longest --context (half of it, a quarter,
  /// ...) that fits.
  CausalModel(const ModelSpec& model, const StateSource& state, int64_t max_tokens,
              const CausalModelOptions& options);
  ~CausalModel();

  int64_t max_tokens() const { return lengths_.back(); }
  int64_t vocabulary() const { return model_.vocabulary; }

  /// Runs the forward over 1 to max_tokens() tokens of the vocabulary.
  void run(std::span<const int32_t> tokens);

  /// Logits [count, vocabulary] after the tokens [first, first + count) of the last `run`. Throws
  /// DataError naming token and logit if one is not finite.
  std::vector<float> logits(int64_t first, int64_t count);

  bool computes_loss() const { return computes_loss_; }
  /// Mean of -ln of the probability of each token after those before it, of max_tokens() + 1
  /// tokens: the loss of training, computed on the device. Requires `computes_loss`. Throws
  /// DataError if it is not finite.
  double loss(std::span<const int32_t> tokens);

 private:
  ModelSpec model_;
  std::vector<int64_t> lengths_;  // of the executor's programs, ascending
  DType dtype_;                   // of the logits
  bool computes_loss_;            // by one more program
  std::unique_ptr<Executor> executor_;
  size_t last_program_ = 0;
  int64_t last_tokens_ = 0;
};

}  // namespace braid
