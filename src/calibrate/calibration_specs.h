#pragma once

#include <vector>

#include "config/run_config.h"
#include "ir/op_spec.h"
#include "plan/run_plan.h"

namespace braid {

/// The shapes that a calibration measures in addition to those of runs.
struct CalibrationGrid {
  std::vector<RunConfig> models;   ///< resolved; one layer, one rank
  std::vector<int64_t> tokens;     ///< rows of products
  std::vector<int64_t> widths;     ///< the other two sizes of products, all pairs
  std::vector<int64_t> sequences;  ///< for attention, with these head sizes
  std::vector<int64_t> head_sizes;
  int64_t attention_tokens = 0;  ///< in all sequences together; at least one sequence
  std::vector<int64_t> copy_bytes;
  std::vector<int64_t> host_copy_bytes;
};

enum class GridSize { kGpu, kCpu, kCpuQuick, kGpuQuick };

/// The grid for a device; dtype is kF32 or kBF16, as of train.dtype.
CalibrationGrid calibration_grid(GridSize size, DType dtype);

/// The copies of a grid, without its models, products and attention.
CalibrationGrid copies_of(CalibrationGrid grid);

/// Every spec of the grid once; those of models first.
std::vector<OpSpec> grid_specs(const CalibrationGrid& grid, DType dtype);

/// The specs that take time on a device, in all programs of all ranks of a run, each once: no
/// communication, no copies to the host. For products fused with SwiGLU also both ops alone.
std::vector<OpSpec> program_specs(const RunPlan& plan);

/// Removes specs with the same `timing_key` as an earlier one.
std::vector<OpSpec> distinct_specs(std::vector<OpSpec> specs);

}  // namespace braid
