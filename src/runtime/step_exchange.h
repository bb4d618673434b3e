#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "backends/executor.h"
#include "ir/program.h"
#include "ops/router.h"

namespace braid {

/// Host memory for the inputs and results of a rank's training steps (parallel/step_program.h
/// defines which of them a rank has). Each step in flight has its own slot, so that the inputs of
/// the next step can be written while the device still reads those of the previous one.
class StepExchange {
 public:
  /// Empty if the rank's program has no such buffer.
  struct Values {
    std::span<int32_t> tokens;                     ///< [M, rows]
    std::span<int32_t> labels;                     ///< [M, rows]
    std::span<int32_t> document_starts;            ///< [M, rows]
    std::span<int32_t> exchanged_document_starts;  ///< [M, rows of inner context ranks]
    std::span<float> reference;                    ///< [M, 2 B] of a preference loss
    std::span<float> loss_scale;
    std::span<int32_t> mtp_tokens;  ///< [D, M, rows]
    std::span<int32_t> mtp_labels;  ///< [D, M, rows]
    std::span<float> mtp_loss_scales;
    std::span<float> optimizer_scalars;  ///< [3], or [4] with bf16 moments
    std::span<int32_t> routing;          ///< [routers, M, T K]; with RoutingUse::kRecorded a result
    std::span<float> losses;             ///< [M], [1 + D, M] or [6, M]; a result, like those below
    std::span<float> grad_norm;
    std::span<float> grad_scale;
    std::span<int64_t> tallies;      ///< of all places (plan/tallies.h)
    std::span<float> router_losses;  ///< [outputs, M, 2]
  };

  /// `program` is the training step of `executor`, which must outlive this object. Throws
  /// DeviceError if host memory for the slots cannot be allocated.
  StepExchange(Executor& executor, const Program& program, int num_slots,
               RoutingUse routing = RoutingUse::kScores);

  /// After the wait for the previous step of this slot, its results may be read and new inputs
  /// written.
  const Values& slot(size_t index) const { return slots_.at(index); }
  /// Call before and after the launch of the step: they are enqueued in the order of the steps.
  void enqueue_inputs(size_t slot);
  void enqueue_results(size_t slot);
  /// Of the results, only those that differ between ranks: tallies, router losses and routing.
  void enqueue_own_results(size_t slot);
  /// The same immediately, before the launch and after the wait, with no step in flight.
  void write_inputs(size_t slot);
  void read_results(size_t slot);
  void read_own_results(size_t slot);

 private:
  void visit_inputs(size_t slot, const auto& visit) const;
  void visit_own_results(size_t slot, const auto& visit) const;

  Executor& executor_;
  RoutingUse routing_;
  HostBlock block_;
  std::vector<Values> slots_;
};

}  // namespace braid
