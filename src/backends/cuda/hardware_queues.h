#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "ir/program.h"

/// Hardware queues of a device, which its streams share where there are more streams. A kernel that
/// waits holds up nobody, but a stream that waits on the device for a word of memory, as copies of
/// peer_calls.h do, holds up all that share its queue: among them perhaps what the word waits for.
namespace braid {

/// Asks the driver (CUDA_DEVICE_MAX_CONNECTIONS) for one for each of so many streams of programs
/// and of the executor, unless the user has said how many. The fewer there are, the sooner does a
/// stream go on that has waited for another one or for a word: a step of 8 tensor ranks takes 10%
/// longer with 32 than with 8 (bench/notes.md). At least 12 all the same: nothing says that the
/// branches of a graph have no more queues than the streams that it was captured from, and with 12
/// 38 layouts of up to 8 ranks have run by copies (bench/notes.md). Only before the first call of
/// CUDA in a process, and before its threads.
void ask_for_hardware_queues(size_t num_streams);

/// Why the streams of these programs of one rank, with those of its executor, cannot have a queue
/// each: "rank 0 has 9 streams and 8 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS): ...". Empty if
/// they can. `asked`: the value of the variable, if it is set.
std::string why_queues_are_shared(std::span<const Program> programs,
                                  const std::optional<std::string>& asked);

/// Of a rank that shares its GPU with others (runtime.ranks_per_gpu), which must communicate by
/// copies, since NCCL takes one rank per GPU: throws ConfigError where its streams share queues.
void require_own_queues(std::span<const Program> programs, const std::optional<std::string>& asked);

}  // namespace braid
