#pragma once

#include <cstdint>
#include <span>

#include "passes/pass.h"

namespace braid {

/// What moves the bytes of communication between GPUs of one host.
enum class CommEngine {
  kAuto,      ///< what the cost model says costs a step less; without a model kSm
  kSm,        ///< kernels of a library
  kCopy,      ///< copy engines, wherever they can
  kNcclCopy,  ///< copy engines as NCCL drives them, wherever it can; else kSm
};

struct CommEngineOptions {
  CommEngine engine = CommEngine::kAuto;
};

/// Chooses for each task of communication what moves its bytes, and says so in its spec
/// (EngineAttribute in ops/collectives.h). Kernels that send take multiprocessors from compute
/// beside them; copy engines take none, and cannot add.
///
/// What copies suffice for (all_gather, all_to_all, ring_shift, send, recv) stays one task:
///   before: all_gather(w -> g) {group=0} comm.data
///   after:  all_gather(w -> g) {group=0, engine=copy} comm.data
/// A sum over n ranks (reduce_scatter, all_reduce) becomes copies into a buffer of its own and a
/// sum on each rank (passes/gradients/reduction_parts.h), all on its stream; only with kCopy,
/// because that buffer has at least the size of what is summed up, and not where a cost model says
/// that the group is on several nodes:
///   before: reduce_scatter(x -> y) {group=0} comm.data
///   after:  all_to_all(x -> r) {group=0, engine=copy} comm.data
///           sum_blocks(r[0], ..., r[n-1] -> y) comm.data
/// With kCopy a run of one host leaves nothing to a library: no step of training or evaluation has
/// a broadcast or a reduce, which stay as they are. The bits are those of the CPU's sum, whatever
/// moves them. NCCL's rounds bf16 at every rank.
///
/// kNcclCopy leaves the copies to NCCL (CTA policy zero, NCCL 2.28), which has them for all_gather
/// and all_to_all, and needs windows (backends/cuda/comm/communicators.h):
///   after:  all_gather(w -> g) {group=0, engine=nccl_copy} comm.data
///
/// kAuto takes copy engines where the time that a task takes alone with them is at most that with
/// multiprocessors plus what products beside it lose meanwhile (Contention::gemm_and_sm_comm), and
/// its group is in one node. All of that is the same on all ranks of the group, so they agree;
/// whether something is beside it is not, and so not asked.
///
/// Counts tasks that copy engines do. Rounding does not change. Place: behind what places
/// communication on streams, and looks for reductions to do so; in front of events.
PassResult comm_engine(Program program, const CommEngineOptions& options,
                       const PassContext& context);

/// What is to move the bytes of one task.
enum class TaskEngine : uint8_t {
  kAsIs,
  kSm,        ///< without EngineAttribute
  kCopy,      ///< as kCopy of CommEngine, wherever ranks are; as it is where copies do not suffice
  kNcclCopy,  ///< as kNcclCopy of CommEngine; as it is where NCCL has no copies
};

/// The program with these engines, one per task, in the order of its tasks, with a task that is
/// taken apart in one place. Events are dropped. Throws InternalError for another number of them.
Program with_engines(const Program& program, std::span<const TaskEngine> engines);

Pass comm_engine_pass(const PipelineOptions& options);

/// Whether a search may take reductions apart for copy engines: their sums are those of the CPU,
/// which NCCL rounds more often.
bool may_choose_engines(const RunConfig& config, const AxisLimits& limits);

}  // namespace braid
