#include "backends/cuda/mark_words.h"

#include <atomic>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/memory_ops.h"

namespace braid {
namespace {

// Words of the whole step; those of the streams follow.
constexpr size_t kStep = 0;  // step number + 1; 0: no step has begun
constexpr size_t kProgram = 1;
constexpr size_t kFirstMark = 2;

}  // namespace

MarkWords::MarkWords(size_t num_streams, cudaStream_t stream)
    : num_streams_(num_streams),
      words_(static_cast<int64_t>((kFirstMark + num_streams) * sizeof(uint32_t)),
             "marks of streams") {
  MemoryOps probe;
  probe.set(word(kStep), 0);
  probe.enqueue(stream);
  BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
}

void MarkWords::begin_step(int64_t step, size_t program, cudaStream_t stream) const {
  MemoryOps ops;
  for (size_t i = 0; i < num_streams_; ++i) {
    ops.set(word(kFirstMark + i), kNoMark);
  }
  ops.set(word(kProgram), static_cast<uint32_t>(program));
  ops.set(word(kStep), static_cast<uint32_t>(step + 1));
  ops.enqueue(stream);
}

void MarkWords::begin_task(size_t number, TaskId task, cudaStream_t stream) const {
  set_mark(number, begin_mark(task), stream);
}

void MarkWords::end_task(size_t number, TaskId task, cudaStream_t stream) const {
  set_mark(number, end_mark(task), stream);
}

void MarkWords::set_mark(size_t number, uint32_t mark, cudaStream_t stream) const {
  MemoryOps ops;
  ops.set(word(kFirstMark + number), mark);
  ops.enqueue(stream);
}

StepMarks MarkWords::read() const {
  StepMarks marks{.step = int64_t{load(kStep)} - 1, .program = load(kProgram)};
  for (size_t i = 0; i < num_streams_; ++i) {
    marks.marks.push_back(load(kFirstMark + i));
  }
  return marks;
}

std::byte* MarkWords::word(size_t index) const {
  return words_.data() + index * sizeof(uint32_t);
}

/// The device may write the words at any time.
uint32_t MarkWords::load(size_t index) const {
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(word(index)))
      .load(std::memory_order_acquire);
}

}  // namespace braid
