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
  /// True: messages of the backward are sent on a communication stream.
  ///
  /// False: messages of the backward to an earlier rank are sent on the compute stream, which waits
  /// for the receiver. Those to a later rank (stages that go round the ranks or lie in a V) stay
  /// beside compute, because both ends could wait for each other.
  bool backward_on_comm_stream = true;
  /// How many jobs of its direction before its reader a message is awaited. Each holds the memory
  /// of one message per direction.
  int64_t jobs_ahead = 1;
  int priority = 1;  ///< of the streams that the pass adds
};

/// Receives messages between pipeline stages beside compute. Each `recv` runs on a stream of its
/// direction and peer. It starts when the job begins that is `jobs_ahead` forwards (or backwards)
/// before the one that reads it. One is enough: the sender works on a job about as long as the
/// receiver, so it is not ready sooner.
///   before: B(0) compute  F(1) compute  recv(-> g1) {group=1} compute  B(1: reads g1) compute
///   after:  undefine(-> g1) compute  recv(-> g1) pipeline.backward.recv  B(0) compute
///           F(1) compute  B(1) compute
/// A job is the forward or the backward of a microbatch through a virtual stage, as labels say; it
/// begins with its first task. If a forward and a backward are woven into one, both begin with the
/// pair. So the message is awaited for a whole pair, and weight gradients at the end of the pair
/// hide it. Messages of one direction and peer keep their order. A message holds memory while it is
/// awaited, so messages of at most `jobs_ahead` jobs per direction are awaited at a time. With
/// `jobs_ahead` = 0 only the streams change.
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
/// overlap_p2p_comm_warmup_flush and pull request 4268. Deviations: they are rewrites of the
/// program here, so they work with every schedule; a message is awaited earlier, so the forward of
/// a pair need not move in front of the wait (that made steps longer, see bench/notes.md).
PassResult p2p_streams(Program program, const P2pStreamsOptions& options = {});

Pass p2p_streams_pass(const PipelineOptions& options);

}  // namespace braid
