#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/parameter_domain.h"
#include "parallel/schedule.h"
#include "sim/device_spec.h"

namespace braid {

/// Device memory of the communicators of a pipeline rank whose members depend on the data ranks,
/// the pipeline and the shards: of gradients and shards, the gradient norm, the loss, tied tables,
/// and the messages between stages. Those of tensor and context ranks and of exchanges of rows are
/// not counted. As `Backend::needs` counts them, if NCCL does all communication.
///
/// `domains` are those of the model on `mesh`. `has_tied_table`: this rank sums the gradients of a
/// tied table with another one. `num_message_pairs`: by `count_message_pairs`.
int64_t communicator_bytes(const DeviceSpec& device, const Mesh& mesh,
                           std::span<const ParameterDomain> domains, bool has_tied_table,
                           int64_t num_message_pairs);

/// By rank of a pipeline: number of directed pairs of ranks between which it sends or receives
/// messages, counted apart for forwards and backwards.
std::vector<int64_t> count_message_pairs(const ScheduleOptions& schedule);

}  // namespace braid
