#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "backends/cuda/kernel.h"
#include "ir/op_spec.h"
#include "ir/program.h"

namespace braid {

class RankCommunication;

/// The kernels of all programs of one rank: one for each compute spec, shared by all programs that
/// have it, and those of communication, which belong to a program and its group. They live as long
/// as this object.
class ProgramKernels {
 public:
  using ComputeFactory = std::function<CudaKernel(const OpSpec& spec)>;

  /// `communication` must outlive this object.
  ProgramKernels(ComputeFactory make_compute, const RankCommunication& communication);

  /// The kernel of each task of program number `program_index`; null: the task does nothing. Makes
  /// missing kernels, which may temporarily use device memory. Kernels of copy engines can be
  /// launched once communication is connected. Throws InternalError if a task has no kernel.
  std::vector<const CudaKernel*> add(const Program& program, size_t program_index);

 private:
  const CudaKernel* kernel_of(const Program& program, size_t program_index, TaskId id);
  const CudaKernel& compute_kernel(const OpSpec& spec);
  const CudaKernel& nccl_kernel(const Program& program, size_t program_index, const Task& task);

  ComputeFactory make_compute_;
  const RankCommunication& communication_;
  SpecTable specs_;  // of all programs
  std::map<SpecId, CudaKernel> compute_;
  std::map<std::pair<size_t, SpecId>, CudaKernel> nccl_;  // by program and its spec
};

}  // namespace braid
