#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct OffloadOptions {
  int64_t num_layers = 0;       ///< the first layers, by their number in the model; 0: none
  int64_t prefetch_layers = 1;  ///< how many layers ahead of their use activations come back, and
                                ///< how many layers of the forward their way out may take
  int64_t min_bytes = int64_t{1} << 20;  ///< smaller ones stay
};

/// Moves activations that the backward reads to the host after their last use in the forward, and
/// back before their first use in the backward.
///   before: gelu(h -> y) forward layer=0  linear(y -> z) forward layer=0  ...  wgrad(y -> rw g)
///   after:  gelu(h -> y) forward layer=0  linear(y -> z) forward layer=0  offload(y -> y.host)
///           ...layer 1...  undefine(-> y)  ...  undefine(-> y.restored)
///           reload(y.host -> y.restored)  ...layer 1...  wgrad(y.restored -> rw g) layer=0
/// Candidates: step buffers of role activation on the device that hold one value each (StepValues),
/// written by a layer's forward and read by a backward.
///
/// Only the order is decided here, on the streams that the neighbours have; assign_streams takes
/// the copies to streams of their own. The two tasks without work say when a value's bytes are
/// given away and taken again: the stream that makes a value waits, `prefetch_layers` layers later,
/// until the copy has left, and the copy back starts when the stream that will read it comes to the
/// layer that is as far ahead. So no more than prefetch_layers + 1 layers of offloaded values are
/// on the device at either end. What would come back before it has gone (the last layers) stays.
///
/// Bitwise neutral: bytes are copied. Counts values, and reports their bytes. Rounding does not
/// change. Place: after recompute, which takes away the need to keep values; before what
/// interleaves layers, since distances are counted in layers of program order. Source: Rhu et al.,
/// vDNN, 2016; Transformer Engine's CPU offloading with double buffering.
PassResult offload(Program program, const OffloadOptions& options);

Pass offload_pass(const PipelineOptions& options);

}  // namespace braid
