#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "ir/program.h"

/// Hardware queues of a device, which streams share if there are more streams than queues. A kernel
/// that waits blocks no other stream. But a stream that waits on the device for a word of memory,
/// as the copies of peer_calls.h do, blocks all streams that share its queue, possibly including
/// the one that sets the word.
namespace braid {

/// Requests from the driver (CUDA_DEVICE_MAX_CONNECTIONS) one queue for each of `num_streams`
/// streams of programs and for those of the executor, unless the user has set the variable. With
/// fewer queues, a stream continues sooner after waiting for another stream or for a word: a step
/// of 8 tensor ranks takes 10% longer with 32 than with 8 (bench/notes.md). Requests at least 12:
/// it is not documented that the branches of a graph use no more queues than the captured streams,
/// and with 12, 38 layouts of up to 8 ranks have run by copies (bench/notes.md). Call it before the
/// first CUDA call in a process, and before it starts threads.
void ask_for_hardware_queues(size_t num_streams);

/// Why the streams of these programs of one rank, with those of its executor, cannot have a queue
/// each: "rank 0 has 9 streams and 8 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS): ...". Empty if
/// they can. `asked`: the value of the variable, if it is set.
std::string why_queues_are_shared(std::span<const Program> programs,
                                  const std::optional<std::string>& asked);

/// For a rank that shares its GPU with others (runtime.ranks_per_gpu), which must communicate by
/// copies, since NCCL supports one rank per GPU: throws ConfigError if its streams share queues.
void require_own_queues(std::span<const Program> programs, const std::optional<std::string>& asked);

}  // namespace braid
