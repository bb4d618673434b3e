#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct SplitOpsOptions {
  /// Off by default: a product in pieces may round differently, and the operands of moved pieces
  /// live longer.
  bool enabled = false;
  /// Each cut or move must make the waiting task start at least this much earlier.
  int64_t min_gain_ns = 5'000;
  /// Minimum rows, or features of a weight gradient, of every piece of a product: the tile of a
  /// matrix product on the devices we know. Other ops are cut at multiples of the same number.
  int64_t min_rows = 128;
  int64_t max_pieces = 8;  ///< of one task
  /// Maximum number of tasks that a piece moves over. Operands of moved pieces live longer, so this
  /// bounds memory: about two layers, forward and backward.
  int64_t max_distance = 96;
};

/// Fills waits with parts of earlier tasks. If a compute task waits for tensor communication on
/// another stream, and an earlier task is finished long before that wait with no task in between
/// depending on it, then the last part of the earlier task moves into the wait.
///   before: all_reduce(a)*  wgrad1  use(a)  dgrad(-> b)  all_reduce(b)*  use(b)
///           a is summed long before wgrad1 ends, and use(b) waits for b
///   after:  all_reduce(a)*  wgrad1[0:640]  use(a)  dgrad(-> b)  all_reduce(b)*  wgrad1[640:1024]
///           use(b)
/// The same work comes before use(b) but takes less time: the wait is no longer idle, and a is used
/// earlier. A task that fits into the wait moves as a whole. split_task.h says how a task may be
/// cut; the cost model decides where. Every candidate is placed into a timeline of this rank
/// (cost_timeline.h), which waits for no other rank. The timeline includes the extra time of two
/// pieces (tiles, launches) and the slowdown of compute by communication beside it. Nothing moves
/// behind a task that depends on it or past the end of a wait, and nothing moves unless the waiting
/// task starts at least `min_gain_ns` earlier.
///
/// The nearest tasks are tried first, so that operands live no longer than necessary. Memory grows
/// by the operands of moved tasks. Sums of weight gradients keep their order: over the rows of a
/// microbatch because pieces are of features, over microbatches because these tasks conflict.
///
/// Counts cut or moved tasks. Does nothing without PassContext::cost_model or for programs with
/// context ranks. May change rounding, see SplitTraits::keeps_bits. Place: after bulk_overlap and
/// passes that interleave jobs, which decide what runs beside what; before passes that move
/// reductions to where gradients are ready. Source: the plan of Paddle's pull request 57446
/// (cost-driven splitting of a forward op beside a communication of the backward), which that
/// request did not implement.
PassResult split_ops(Program program, const SplitOpsOptions& options, const PassContext& context);

Pass split_ops_pass(const PipelineOptions& options);

}  // namespace braid
