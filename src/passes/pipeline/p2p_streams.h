#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct P2pStreamsOptions {
  /// False: the pass leaves the program alone.
  bool enabled = true;
  /// Also in the warm-up (jobs in front of the first backward) and in the flush (jobs behind the
  /// backward that follows the last forward), not only between them.
  bool warmup_flush = true;
  /// Messages of the backward leave beside compute, and no compute that they do not concern waits
  /// for them (see below). False: those to an earlier rank leave on the compute stream, which waits
  /// for the receiver. Those to a later rank (where stages go round the ranks or lie in a V) never
  /// do: both ends could wait for each other. Each that does is awaited one job more ahead: where
  /// stages go round the ranks, every rank has the result of a backward ready in front of the job
  /// with which its receiver would begin to wait for it, and all would stand still, one job in two.
  bool backward_on_comm_stream = true;
  /// Jobs that a message is awaited ahead of the one that reads it. Each holds the memory of one
  /// message per direction.
  int64_t jobs_ahead = 1;
  int priority = 1;  ///< of the streams that the pass makes
};

/// Takes messages between pipeline stages beside compute: each `recv` on a stream of its direction
/// and peer, from `jobs_ahead` jobs in front of the one that reads it.
///   before: F(1) compute  recv(-> g0) {group=1} compute  B(0: reads g0) compute
///   after:  undefine(-> g0) compute  recv(-> g0) pipeline.backward.recv  F(1) compute  B(0)
///   compute
/// A job is the forward or the backward of a microbatch through a virtual stage, as labels say; it
/// begins with its first task. Messages of one direction and peer are taken in the order in which
/// they were, none passes another, and no more than `jobs_ahead` jobs' are awaited at a time (one
/// more, see backward_on_comm_stream), because each holds memory from there on. With `jobs_ahead` =
/// 0 only the streams change.
///
/// With `backward_on_comm_stream`, compute that a message would hold up for nothing runs before it:
/// where a forward is woven into a backward that waits for a message, what the forward does up to
/// its first communication or its first feed-forward goes in front of that wait.
///   before: recv(-> g)  dgrad(g -> h) mb=0  attention(...) mb=1  dgrad(h -> ...) mb=0
///   after:  recv(-> g)  attention(...) mb=1  dgrad(g -> h) mb=0  dgrad(h -> ...) mb=0
///
/// Streams and communicators: messages from one member of a group to another are one sequence,
/// sent from one stream and taken by one stream, in one order over all their channels
/// (VerifyRanksOptions::one_order_of_messages). So a transport whose communicators take one call at
/// a time and know no channels (NCCL) needs one communicator per group and ordered pair of ranks,
/// and on it nothing waits for anything else. A message that is awaited earlier holds up nobody, so
/// what did not deadlock does not.
/// Counts tasks that change streams or move. Rounding does not change. Place: behind what moves
/// tasks within jobs, in front of events. Source: Megatron-LM's overlap_p2p_comm,
/// overlap_p2p_comm_warmup_flush and pull request 4268 (the hoist), as rewrites of the program;
/// here every schedule has them.
PassResult p2p_streams(Program program, const P2pStreamsOptions& options = {});

Pass p2p_streams_pass(const PipelineOptions& options);

}  // namespace braid
