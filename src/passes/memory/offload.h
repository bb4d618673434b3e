#pragma once

#include <cstdint>

#include "passes/pass.h"

namespace braid {

struct OffloadOptions {
  int64_t num_layers = 0;       ///< offloads the first layers, by number in the model; 0: none
  int64_t prefetch_layers = 1;  ///< layers before its use at which an activation is copied back;
                                ///< also the forward layers that its copy out may take
  int64_t min_bytes = int64_t{1} << 20;  ///< smaller buffers stay on the device
};

/// Copies activations that the backward reads to the host after their last use in the forward, and
/// back before their first use in the backward.
///   before: gelu(h -> y) forward layer=0  linear(y -> z) forward layer=0  ...  wgrad(y -> rw g)
///   after:  gelu(h -> y) forward layer=0  linear(y -> z) forward layer=0  offload(y -> y.host)
///           ...layer 1...  undefine(-> y)  ...  undefine(-> y.restored)
///           reload(y.host -> y.restored)  ...layer 1...  wgrad(y.restored -> rw g) layer=0
/// Candidates: step buffers of role activation on the device that hold one value each (StepValues),
/// are written by a layer's forward and read by a backward.
///
/// This pass decides only the order, and uses the streams of neighbouring tasks; assign_streams
/// moves the copies to their own streams. The two `undefine`s say where a value's memory is
/// released and where it is taken again. The stream that makes a value waits, `prefetch_layers`
/// layers later, until the copy out has finished. The copy back starts when the stream that reads
/// the value is `prefetch_layers` layers before the reader. So at most prefetch_layers + 1 layers
/// of offloaded values are on the device at either end. A value that would be copied back before
/// its copy out has finished (the last layers) stays.
///
/// Bits do not change: bytes are copied. Counts values, and reports their bytes. Rounding does not
/// change. Place: after recompute, because recomputed values need not be kept; before passes that
/// interleave layers, because distances are counted in layers of program order. Source: Rhu et al.,
/// vDNN, 2016; Transformer Engine's CPU offloading with double buffering.
PassResult offload(Program program, const OffloadOptions& options);

Pass offload_pass(const PipelineOptions& options);

}  // namespace braid
