#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct P2pStreamsOptions {
  /// False: the pass does not change the program.
  bool enabled = true;
  /// True: also in the warm-up (jobs before the first backward) and in the flush (jobs behind the
  /// backward that follows the last forward). False: only between them.
  bool warmup_flush = true;
  /// True: messages of the backward are sent on a communication stream, and compute that does not
  /// depend on a message does not wait for it (see below).
  ///
  /// False: messages of the backward to an earlier rank are sent on the compute stream, which waits
  /// for the receiver. Those to a later rank (stages that go round the ranks or lie in a V) stay
  /// beside compute, because both ends could wait for each other. The receiver takes each blocking
  /// message one job earlier. Otherwise, where stages go round the ranks, every rank would finish a
  /// backward before the job in which its receiver begins to wait for it, and all ranks would stall
  /// in every second job.
  bool backward_on_comm_stream = true;
  /// How many jobs before its reader a message is awaited. Each job holds the memory of one message
  /// per direction.
  int64_t jobs_ahead = 1;
  int priority = 1;  ///< of the streams that the pass adds
};

/// Receives messages between pipeline stages beside compute. Each `recv` runs on a stream of its
/// direction and peer, and starts `jobs_ahead` jobs before the job that reads it.
///   before: F(1) compute  recv(-> g0) {group=1} compute  B(0: reads g0) compute
///   after:  undefine(-> g0) compute  recv(-> g0) pipeline.backward.recv  F(1) compute
///           B(0) compute
/// A job is the forward or the backward of a microbatch through a virtual stage, as labels say; it
/// begins with its first task. Messages of one direction and peer keep their order. A message holds
/// memory while it is awaited, so messages of at most `jobs_ahead` jobs are awaited at a time (one
/// more, see backward_on_comm_stream). With `jobs_ahead` = 0 only the streams change.
///
/// With `backward_on_comm_stream`, compute that does not depend on a message runs before the wait
/// for it. If a forward is woven into a backward that waits for a message, the forward's tasks up
/// to its first communication or first feed-forward move in front of that wait.
///   before: recv(-> g)  dgrad(g -> h) mb=0  attention(...) mb=1  dgrad(h -> ...) mb=0
///   after:  recv(-> g)  attention(...) mb=1  dgrad(g -> h) mb=0  dgrad(h -> ...) mb=0
///
/// Streams and communicators: messages from one member of a group to another form one sequence.
/// They are sent from one stream and received on one stream, in one order over all their channels
/// (VerifyRanksOptions::one_order_of_messages). So a transport whose communicators take one call at
/// a time and know no channels (NCCL) needs one communicator per group and ordered pair of ranks,
/// and nothing else waits on it. Waiting for a message earlier blocks no other task, so the pass
/// adds no deadlock.
///
/// Counts tasks that change streams or move. Rounding does not change. Place: after passes that
/// move tasks within jobs, before events. Source: Megatron-LM's overlap_p2p_comm,
/// overlap_p2p_comm_warmup_flush and pull request 4268 (the hoist). Deviation: they are rewrites of
/// the program here, so they work with every schedule.
PassResult p2p_streams(Program program, const P2pStreamsOptions& options = {});

Pass p2p_streams_pass(const PipelineOptions& options);

}  // namespace braid
