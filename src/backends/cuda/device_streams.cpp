#include "backends/cuda/device_streams.h"

#include <algorithm>

#include "backends/cuda/cuda_error.h"
#include "base/errors.h"

namespace braid {

DeviceStreams::DeviceStreams() : launch_stream_(0), forked_(EventTiming::kNone) {}

std::vector<size_t> DeviceStreams::add(const Program& program) {
  std::vector<size_t> numbers;
  for (const Stream& stream : program.streams) {
    const size_t number = add_stream(stream);
    check(std::ranges::find(numbers, number) == numbers.end(),
          "program {} has two streams named {}", program.name, stream.name);
    numbers.push_back(number);
  }
  for (const Task& task : program.tasks) {
    check(task.stream.index() < numbers.size(), "program {}: stream {} of {}", program.name,
          task.stream.value, numbers.size());
  }
  while (events_.size() < program.num_events) {
    events_.emplace_back(EventTiming::kNone);
  }
  return numbers;
}

size_t DeviceStreams::add_stream(const Stream& stream) {
  const size_t number = scratch_.add(stream);
  if (number == streams_.size()) {
    DeviceStream& added = streams_.emplace_back();
    added.stream = stream;
    added.handle = CudaStream(stream.priority);
    added.joined = CudaEvent(EventTiming::kNone);
  }
  return number;
}

void DeviceStreams::allocate_scratch(int rank) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    streams_[i].scratch =
        DeviceArena(scratch_.size_bytes(i),
                    fmt::format("scratch of rank {}, stream {}", rank, streams_[i].stream.name));
  }
}

int64_t DeviceStreams::scratch_bytes() const {
  int64_t size_bytes = 0;
  for (const DeviceStream& stream : streams_) {
    size_bytes += stream.scratch.size_bytes();
  }
  return size_bytes;
}

void DeviceStreams::fork(std::span<const size_t> streams) {
  BRAID_CUDA_CHECK(cudaEventRecord(forked_, launch_stream_));
  for (const size_t stream : streams) {
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(streams_[stream].handle, forked_));
  }
}

void DeviceStreams::join(std::span<const size_t> streams) {
  for (const size_t stream : streams) {
    BRAID_CUDA_CHECK(cudaEventRecord(streams_[stream].joined, streams_[stream].handle));
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(launch_stream_, streams_[stream].joined));
  }
}

bool DeviceStreams::are_busy() const {
  const auto is_busy = [](cudaStream_t stream) {
    return cudaStreamQuery(stream) == cudaErrorNotReady;
  };
  return is_busy(launch_stream_) || std::ranges::any_of(streams_, [&](const DeviceStream& each) {
           return is_busy(each.handle);
         });
}

void DeviceStreams::synchronize() const noexcept {
  ignore_error(cudaStreamSynchronize(launch_stream_));
  for (const DeviceStream& stream : streams_) {
    ignore_error(cudaStreamSynchronize(stream.handle));
  }
}

}  // namespace braid
