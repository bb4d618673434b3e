#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "backends/executor.h"
#include "comm/links.h"
#include "comm/transport.h"
#include "plan/run_plan.h"
#include "state/state_map.h"

namespace braid {

/// State of a whole model in f64: [units of RunPlan::layout][elements].
using UnitValues = std::vector<std::vector<double>>;

/// Tokens and labels of one step: [global batch][sequence].
struct TokenBatch {
  int64_t num_sequences = 0;
  int64_t sequence = 0;
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;
  std::vector<int32_t> document_starts = {};  ///< if the run separates documents
  std::vector<double> reference =
      {};  ///< [global batch][2] of a preference loss (ops/preference.h)
};

struct LayoutRunOptions {
  int threads_per_rank = 1;
  int64_t timeout_ns = 60'000'000'000;  ///< how long a rank waits for others before a step fails
  LinkOptions links = {};               ///< emulated between the ranks
};

/// Options from sections [runtime] and [links].
LayoutRunOptions layout_run_options(const RunSpec& run, int threads_per_rank);

/// All ranks of a plan on the CPU, for comparisons: any dtype, state in and out by element.
/// Training uses Engine instead.
class LayoutRun {
 public:
  LayoutRun(RunPlan plan, const LayoutRunOptions& options);
  ~LayoutRun();

  const RunPlan& plan() const { return plan_; }
  /// Sets the weights of all ranks, and zero moments.
  void set_weights(const UnitValues& weights);
  /// Runs one step of the training program; returns the loss.
  double step(const TokenBatch& batch, std::span<const float> scalars);  ///< adamw_scalars
  double grad_norm() const;
  /// The state of the ranks, each element from one rank. Zero if no rank has it.
  UnitValues read(StateBuffer kind) const;
  /// The updated weights: main weights if there are any.
  UnitValues weights() const;
  /// Largest difference between copies of one element on different ranks.
  double copies_differ(StateBuffer kind) const;

 private:
  void write_batch(size_t rank, const TokenBatch& batch);
  void write_io(size_t rank, std::string_view name, int64_t first, std::span<const double> values);
  UnitValues read_by_unit(const std::function<StateBuffer(size_t unit)>& kind_of) const;
  std::vector<double> read_buffer(size_t index) const;
  std::vector<double> read_io(size_t rank, std::string_view name) const;
  const Buffer* find_buffer(size_t rank, std::string_view name) const;

  RunPlan plan_;
  StateMap map_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<Executor>> executors_;  // by rank
};

}  // namespace braid
