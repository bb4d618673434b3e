#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "backends/executor.h"
#include "comm/process_group.h"
#include "data/batch_loader.h"
#include "plan/run_plan.h"
#include "report/records.h"

namespace braid {

struct EvaluationResult {
  double loss = 0;  ///< mean over the batch, in nats per token; of pairs, over pairs
  std::optional<PreferenceRecord> preference = {};
};

/// Of figures (ops/preference.h) of microbatches or ranks, one after the other, whose sums are
/// those of the step.
PreferenceRecord preference_of(std::span<const float> figures);

/// The ranks of this process as they run the evaluation program: a forward of each microbatch of a
/// batch, with weights as they are. Results are those of all ranks, and the same in all processes,
/// which make the same calls. NaN if rows of experts had no room.
class Evaluation {
 public:
  /// `executors` are those of `ranks`. All must outlive this object; `processes` is null if the run
  /// has one process.
  Evaluation(const RunPlan& plan, std::span<const size_t> ranks, std::vector<Executor*> executors,
             ProcessGroup* processes);

  EvaluationResult evaluate(const StepBatch& batch);
  /// With RunSpec::preference: of each sample's labels, in the order of samples.
  std::vector<float> log_probabilities(const StepBatch& batch);

 private:
  bool has_buffer(size_t local, std::string_view name) const;
  void write_inputs(size_t local, const StepBatch& batch, int64_t microbatch);
  void run(const StepBatch& batch, int64_t microbatch);
  void append_result(std::vector<float>& results, size_t local, std::string_view name,
                     int64_t elems) const;
  std::vector<float> results_of_ranks(const std::vector<float>& own, size_t width) const;

  const RunPlan& plan_;
  std::span<const size_t> ranks_;
  std::vector<Executor*> executors_;
  ProcessGroup* processes_;
};

}  // namespace braid
