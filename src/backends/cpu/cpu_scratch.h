#pragma once

#include <cstdint>
#include <span>

#include "ir/program.h"

namespace braid {

/// Scratch that a CpuExecutor of these programs of one rank allocates for its kernels, with
/// `num_workers` workers on compute streams. Allocates none of it.
int64_t cpu_scratch_bytes(std::span<const Program> programs, int num_workers);

/// Workers that a stream's kernels are made for.
inline int workers_of(const Stream& stream, int num_workers) {
  return stream.kind == StreamKind::kCompute ? num_workers : 1;
}

}  // namespace braid
