#pragma once

#include <cstdint>
#include <span>

#include "passes/pass.h"

namespace braid {

/// What moves the bytes of communication between GPUs of one host.
enum class CommEngine {
  kAuto,      ///< the engine that costs less by the cost model; without a model kSm
  kSm,        ///< kernels of a communication library
  kCopy,      ///< copy engines, wherever possible
  kNcclCopy,  ///< copy engines through NCCL, wherever possible; else kSm
};

struct CommEngineOptions {
  CommEngine engine = CommEngine::kAuto;
};

/// Chooses for each communication task what moves its bytes, and stores that in its spec
/// (EngineAttribute in ops/collectives.h). Kernels that send take multiprocessors from compute
/// beside them. Copy engines take none, but cannot add.
///
/// Tasks that need only copies (all_gather, all_to_all, ring_shift, send, recv) stay one task:
///   before: all_gather(w -> g) {group=0} comm.data
///   after:  all_gather(w -> g) {group=0, engine=copy} comm.data
/// A sum over n ranks (reduce_scatter, all_reduce; all_reduce_max likewise) becomes copies into a
/// separate buffer and a sum on each rank (passes/gradients/reduction_parts.h), all on the task's
/// stream. Only kCopy does this, because the buffer is at least as large as the summed data, and
/// only if no cost model says that the group is on several nodes:
///   before: reduce_scatter(x -> y) {group=0} comm.data
///   after:  all_to_all(x -> r) {group=0, engine=copy} comm.data
///           sum_blocks(r[0], ..., r[n-1] -> y) comm.data
/// broadcast and reduce do not change. No training or evaluation step has one, so with kCopy a run
/// on one host needs no communication library. The bits are those of the CPU's sum, whatever moves
/// the bytes. NCCL rounds bf16 at every rank.
///
/// kNcclCopy lets NCCL do the copies (CTA policy zero, NCCL 2.28), for all_gather and all_to_all.
/// It needs windows (backends/cuda/comm/communicators.h):
///   after:  all_gather(w -> g) {group=0, engine=nccl_copy} comm.data
///
/// kAuto takes copy engines if the group is on one node, and the task alone takes at most as long
/// with them as with multiprocessors plus what products beside it lose meanwhile
/// (Contention::gemm_and_sm_comm). These inputs are the same on all ranks of the group, so the
/// ranks agree. Whether compute really runs beside the task can differ between ranks, so it is
/// ignored.
///
/// Counts tasks that copy engines do. Rounding does not change. Place: after passes that place
/// communication on streams, because they look for reductions; before events.
PassResult comm_engine(Program program, const CommEngineOptions& options,
                       const PassContext& context);

/// What moves the bytes of one task.
enum class TaskEngine : uint8_t {
  kAsIs,
  kSm,        ///< without EngineAttribute
  kCopy,      ///< CommEngine::kCopy, on any nodes; unchanged if the task cannot be copies
  kNcclCopy,  ///< CommEngine::kNcclCopy; unchanged if NCCL has no copies for it
};

/// Applies the engines, one per task in program order. A task that becomes several keeps its place.
/// Events are dropped. Throws InternalError for another number of engines.
Program with_engines(const Program& program, std::span<const TaskEngine> engines);

Pass comm_engine_pass(const PipelineOptions& options);

/// Whether a search may replace reductions by copies and sums. The sums are then the CPU's; NCCL
/// rounds more often.
bool may_choose_engines(const RunConfig& config, const AxisLimits& limits);

}  // namespace braid
