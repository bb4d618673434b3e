#include "backends/cuda/program_kernels.h"

#include <optional>

#include "backends/cuda/comm/rank_communication.h"
#include "base/errors.h"
#include "ops/elementwise.h"
#include "ops/expert_exchange.h"
#include "ops/offload.h"
#include "ops/op.h"

namespace braid {
namespace {

/// Throws InternalError if the task, which communicates only with its own rank, is a message or an
/// exchange of rows, which are no copies.
void check_needs_no_others(const Program& program, TaskId id) {
  const OpSpec& spec = program.spec(program.tasks[id.index()]);
  check(!is_message(spec), "task {} ({}) exchanges messages with itself", id.value,
        describe_task(program, id));
  check(!exchanges_rows(spec), "task {} ({}) exchanges rows with itself", id.value,
        describe_task(program, id));
}

/// A collective of one rank with x and y.
OpSpec copy_spec(const OpSpec& collective) {
  return {.op = std::string(kCopyOp.name), .attributes = {}, .operands = collective.operands};
}

}  // namespace

ProgramKernels::ProgramKernels(ComputeFactory make_compute, const RankCommunication& communication)
    : make_compute_(std::move(make_compute)), communication_(communication) {}

std::vector<const CudaKernel*> ProgramKernels::add(const Program& program, size_t program_index) {
  std::vector<const CudaKernel*> kernels;
  kernels.reserve(program.tasks.size());
  // By spec: few specs, perhaps a million tasks.
  std::vector<std::optional<const CudaKernel*>> known(program.specs.size());
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    if (const CudaKernel* const copy = communication_.copy_kernel(program_index, TaskId(i))) {
      kernels.push_back(copy);  // each task has its own
      continue;
    }
    auto& kernel = known[program.tasks[i].spec.index()];
    if (!kernel) {
      kernel = kernel_of(program, program_index, TaskId(i));
    }
    kernels.push_back(*kernel);
  }
  return kernels;
}

/// Null: the task does nothing.
const CudaKernel* ProgramKernels::kernel_of(const Program& program, size_t program_index,
                                            TaskId id) {
  const Task& task = program.tasks[id.index()];
  const OpSpec& spec = program.spec(task);
  if (does_nothing(spec)) {
    return nullptr;
  }
  if (find_op(spec.op).op_class != OpClass::kCommunication) {
    return &compute_kernel(spec);
  }
  if (communicator_key(program, task)) {
    return &nccl_kernel(program, program_index, task);
  }
  check_needs_no_others(program, id);
  return spec.operands.size() == 1 ? nullptr
                                   : &compute_kernel(copy_spec(spec));  // in place, or to y
}

const CudaKernel& ProgramKernels::compute_kernel(const OpSpec& spec) {
  const SpecId id = specs_.intern(spec);
  auto entry = compute_.find(id);
  if (entry == compute_.end()) {
    entry = compute_.emplace(id, make_compute_(spec)).first;
    check(entry->second.launch != nullptr, "op {} has an empty kernel", spec.op);
  }
  return entry->second;
}

const CudaKernel& ProgramKernels::nccl_kernel(const Program& program, size_t program_index,
                                              const Task& task) {
  const auto [entry, is_new] = nccl_.try_emplace({program_index, task.spec});
  if (is_new) {
    entry->second = communication_.make_nccl_kernel(program, task);
  }
  return entry->second;
}

}  // namespace braid
