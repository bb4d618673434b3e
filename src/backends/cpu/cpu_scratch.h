#pragma once

#include <cstdint>
#include <span>

#include "ir/program.h"

namespace braid {

/// The scratch that a CpuExecutor of these programs of one rank allocates for its kernels, with
/// `num_workers` workers on compute streams. Allocates nothing.
int64_t cpu_scratch_bytes(std::span<const Program> programs, int num_workers);

/// The number of workers of a stream's kernels.
inline int workers_of(const Stream& stream, int num_workers) {
  return stream.kind == StreamKind::kCompute ? num_workers : 1;
}

}  // namespace braid
