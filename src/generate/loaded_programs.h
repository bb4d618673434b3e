#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "model/model_spec.h"
#include "parallel/parameter_layout.h"
#include "plan/run_plan.h"
#include "runtime/device.h"
#include "state/state_source.h"

namespace braid {

class Executor;

struct CausalModelOptions {
  int threads = 1;                         ///< on the CPU
  Device device = {};                      ///< a GPU computes in bfloat16, the CPU in float32
  std::string cache_folder = {};           ///< as in EngineOptions
  std::optional<int64_t> free_bytes = {};  ///< of the memory in which it runs; none: not checked
  bool computes_loss = false;              ///< for CausalModel::loss, which needs a program more
};

/// The dtype of weights, logits and caches on that device.
DType compute_dtype(const Device& device);

/// An executor of a trained model's forward programs, with its weights.
class LoadedPrograms {
 public:
  /// `plan(n)`: the programs for sequences of up to n tokens, all with the weights of `layout`.
  /// Throws ConfigError before anything is allocated if those for `max_tokens` do not fit into
  /// `free_bytes`, with the longest --context (half of it, a quarter, ...) that fits.
  LoadedPrograms(const ModelSpec& model, const StateSource& state, int64_t max_tokens,
                 const CausalModelOptions& options,
                 const std::function<RankPlan(const ParameterLayout&, int64_t)>& plan);
  ~LoadedPrograms();

  Executor& executor() { return *executor_; }
  DType dtype() const { return dtype_; }
  /// Whether a program has this buffer for the host.
  bool has(std::string_view buffer) const { return io_.contains(buffer); }

  /// Rows [first, first + count) of a buffer of logits [.., padded vocabulary]: [count,
  /// vocabulary]. The first one follows `num_tokens` tokens of a sequence, the next ones one more
  /// each. Throws DataError naming token and logit if one is not finite.
  std::vector<float> logits(std::string_view buffer, int64_t first, int64_t count,
                            int64_t num_tokens);

 private:
  int64_t vocabulary_;
  int64_t padded_vocabulary_;
  DType dtype_;
  std::set<std::string, std::less<>> io_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace braid
