#include "passes/pipeline.h"

#include "passes/context/context_ring.h"
#include "passes/context/delay_context_wgrad.h"
#include "passes/gradients/overlap_grad_reduce.h"
#include "passes/remove_identities.h"
#include "passes/streams/insert_events.h"

namespace braid {

std::vector<Pass> default_pipeline(const PipelineOptions& options) {
  return {
      {.name = "remove_identities",
       .summary = "Removes sums over one rank, copies of a range onto itself, and identities.",
       .run = [](Program program,
                 const PassContext&) { return remove_identities(std::move(program)); }},
      {.name = "recompute",
       .summary = "Makes activations again in the backward instead of keeping them.",
       .run = [recompute_options = options.recompute](
                  Program program,
                  const PassContext&) { return recompute(std::move(program), recompute_options); }},
      // After recompute: what is made again need not be moved.
      {.name = "offload",
       .summary = "Moves activations to the host between forward and backward.",
       .run = [offload_options = options.offload](
                  Program program,
                  const PassContext&) { return offload(std::move(program), offload_options); }},
      // After what knows activations as wholes.
      {.name = "split_exchange",
       .summary = "Cuts what is around the exchanges of heads between context ranks, so that they "
                  "run under it.",
       .run =
           [split = options.split_exchange](Program program, const PassContext& context) {
             return split_exchange(std::move(program), split, context);
           },
       .changes_rounding = true},
      // After what knows activations as wholes, in front of ring_exchange, which takes each half.
      {.name = "halve_forward",
       .summary = "Weaves the halves of a microbatch's forward, so that each hides the other's "
                  "tensor communication.",
       .run =
           [halves = options.halve_forward](Program program, const PassContext& context) {
             return halve_forward(std::move(program), halves, context);
           },
       .changes_rounding = true},
      // After recompute, which decides what is gathered again.
      {.name = "ring_exchange",
       .summary = "Cuts products and the tensor communication that they depend on into pieces that "
                  "overlap.",
       .run = [ring = options.ring_exchange](
                  Program program,
                  const PassContext&) { return ring_exchange(std::move(program), ring); },
       .changes_rounding = true},
      // In front of overlap_grad_reduce: a reduction follows the weight gradients that it needs.
      {.name = "delay_wgrad",
       .summary =
           "Moves weight gradients behind the message to the stage before, so that they hide "
           "it.",
       .run = [delay = options.delay_wgrad](
                  Program program,
                  const PassContext&) { return delay_wgrad(std::move(program), delay); }},
      {.name = "delay_last_wgrad",
       .summary = "Moves weight gradients of the first layers behind the embedding's, so that they "
                  "hide the reduction of that.",
       .run = [delay = options.delay_last_wgrad](
                  Program program,
                  const PassContext&) { return delay_last_wgrad(std::move(program), delay); }},
      {.name = "defer_head_wgrad",
       .summary = "Moves weight gradients of the output projection into the bubble behind the last "
                  "backward.",
       .run = [defer = options.defer_head_wgrad](
                  Program program,
                  const PassContext&) { return defer_head_wgrad(std::move(program), defer); }},
      {.name = "fill_cooldown",
       .summary =
           "Moves weight gradients of the last backwards to where a rank waits for the stages "
           "in front of it.",
       .run = [fill = options.fill_cooldown](
                  Program program,
                  const PassContext&) { return fill_cooldown(std::move(program), fill); }},
      // Behind what moves weight gradients out of their jobs.
      {.name = "delay_context_wgrad",
       .summary = "Moves weight gradients behind the exchanges between context ranks that their "
                  "backward waits for, so that they hide them.",
       .run =
           [](Program program, const PassContext& context) {
             return delay_context_wgrad(std::move(program), context);
           }},
      // Behind what moves weight gradients away, in front of what takes streams as they are.
      {.name = "bulk_overlap",
       .summary = "Starts tensor communication early, beside a product that does not depend on it.",
       .run = [bulk = options.bulk_overlap](
                  Program program,
                  const PassContext&) { return bulk_overlap(std::move(program), bulk); }},
      // Behind what orders tasks within a job, in front of what goes by the order of jobs' tasks.
      {.name = "pair_forward_backward",
       .summary = "Weaves a forward and a backward, or two halves of a microbatch, so that each "
                  "hides the other's tensor and context communication.",
       .run =
           [pairs = options.pair_forward_backward](Program program, const PassContext& context) {
             return pair_forward_backward(std::move(program), pairs, context);
           }},
      // Behind what decides what runs beside what, in front of what goes by where gradients are
      // ready.
      {.name = "split_ops",
       .summary = "Cuts tasks so that a part of them runs in a wait for tensor communication.",
       .run =
           [split = options.split_ops](Program program, const PassContext& context) {
             return split_ops(std::move(program), split, context);
           },
       .changes_rounding = true},
      {.name = "overlap_grad_reduce",
       .summary = "Moves each gradient communication to where its gradient is ready, so that it "
                  "runs under the rest of the backward.",
       .run = [](Program program,
                 const PassContext&) { return overlap_grad_reduce(std::move(program)); }},
      // Behind overlap_grad_reduce, with whose reductions gathers take turns on one stream.
      {.name = "prefetch_parameters",
       .summary = "Starts gathers of weights a unit early, so that they run under the compute of "
                  "the units before.",
       .run =
           [prefetch = options.prefetch_parameters](Program program, const PassContext&) {
             return prefetch_parameters(std::move(program), prefetch);
           }},
      {.name = "context_ring",
       .summary = "Lets keys and values go on to the next context rank while attention to those "
                  "that are here is computed.",
       .run = [](Program program, const PassContext&) { return context_ring(std::move(program)); }},
      // Behind all that moves tasks within jobs, whose beginnings it looks for.
      {.name = "p2p_streams",
       .summary = "Takes messages between pipeline stages beside compute, a job ahead.",
       .run = [p2p = options.p2p_streams](
                  Program program,
                  const PassContext&) { return p2p_streams(std::move(program), p2p); }},
      {.name = "assign_streams",
       .summary = "Places communication and copies to and from the host on streams of their own.",
       .run = [assign = options.assign_streams](
                  Program program,
                  const PassContext&) { return assign_streams(std::move(program), assign); }},
      // Behind what looks for reductions, which it may take apart.
      {.name = "comm_engine",
       .summary =
           "Chooses whether multiprocessors or copy engines move the bytes of communication.",
       .run =
           [engine = options.comm_engine](Program program, const PassContext& context) {
             return comm_engine(std::move(program), engine, context);
           }},
      // Behind what knows products and activations as two tasks: nearly everything.
      {.name = "fuse_swiglu",
       .summary = "Makes a product and the SwiGLU, or SwiGLU's backward, beside it one task.",
       .run = [fuse = options.fuse_swiglu](
                  Program program,
                  const PassContext&) { return fuse_swiglu(std::move(program), fuse); }},
      {.name = "insert_events",
       .summary = "Turns dependencies between streams into as few events and waits as are needed.",
       .run = [](Program program, const PassContext&) { return insert_events(std::move(program)); },
       .why_required = "tasks of different streams would run unordered",
       .places_events = true},
  };
}

}  // namespace braid
