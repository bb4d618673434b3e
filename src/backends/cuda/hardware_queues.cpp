#include "backends/cuda/hardware_queues.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "backends/stream_scratch.h"
#include "base/errors.h"

namespace braid {
namespace {

constexpr const char* kVariable = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr size_t kMost = 32;
constexpr size_t kFewest = 12;
constexpr size_t kDefault = 8;
constexpr size_t kExecutorStreams = 2;  // the launch stream, and the one that ends waits

/// The number of queues for a value of the variable, as the driver interprets it.
size_t num_queues(const std::optional<std::string>& asked) {
  size_t number = 0;
  if (!asked ||
      std::from_chars(asked->data(), asked->data() + asked->size(), number).ec != std::errc() ||
      number == 0) {
    return kDefault;
  }
  return std::min(number, kMost);
}

}  // namespace

void ask_for_hardware_queues(size_t num_streams) {
  const size_t number = std::clamp(num_streams + kExecutorStreams, kFewest, kMost);
  setenv(kVariable, std::to_string(number).c_str(), /*overwrite=*/0);
}

std::string why_queues_are_shared(std::span<const Program> programs,
                                  const std::optional<std::string>& asked) {
  StreamScratch streams;  // programs share streams of equal name and kind
  for (const Program& program : programs) {
    for (const Stream& stream : program.streams) {
      streams.add(stream);
    }
  }
  const size_t num_streams = streams.num_streams() + kExecutorStreams;
  if (num_streams <= num_queues(asked)) {
    return "";
  }
  const std::string advice = num_streams <= kMost
                                 ? fmt::format("set it to {}, or leave it unset", kMost)
                                 : fmt::format("a device has at most {}", kMost);
  return fmt::format("rank {} has {} streams and {} hardware queues ({}): {}",
                     programs.front().rank, num_streams, num_queues(asked), kVariable, advice);
}

void require_own_queues(std::span<const Program> programs,
                        const std::optional<std::string>& asked) {
  const std::string why = why_queues_are_shared(programs, asked);
  if (!why.empty()) {
    throw_config_error(
        "runtime.ranks_per_gpu: ranks that share a GPU communicate by copies, for which each "
        "stream must have a hardware queue of its own, and {}",
        why);
  }
}

}  // namespace braid
