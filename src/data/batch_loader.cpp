#include "data/batch_loader.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/errors.h"
#include "data/document_starts.h"

namespace braid {
namespace {

BatchLoaderOptions checked(BatchLoaderOptions options) {
  const BatchShape& shape = options.shape;
  if (shape.num_ranks < 1 || shape.num_microbatches < 1 || shape.microbatch < 1) {
    throw_config_error(
        "a step of {} data-parallel ranks x {} microbatches x {} samples has no data: each must be "
        "at least 1",
        shape.num_ranks, shape.num_microbatches, shape.microbatch);
  }
  if (options.rank_end == 0) {
    options.rank_end = shape.num_ranks;
  }
  check(0 <= options.rank_begin && options.rank_begin < options.rank_end &&
            options.rank_end <= shape.num_ranks,
        "ranks [{}, {}) of {}", options.rank_begin, options.rank_end, shape.num_ranks);
  check(options.prefetch_steps >= 1, "prefetch of {} steps", options.prefetch_steps);
  check(options.consumed_samples >= 0, "resume at sample {}", options.consumed_samples);
  return options;
}

}  // namespace

int64_t first_sample_of(const BatchShape& shape, int64_t consumed_samples, int64_t rank,
                        int64_t microbatch_index) {
  return consumed_samples + (microbatch_index * shape.num_ranks + rank) * shape.microbatch;
}

std::vector<int32_t> take_positions(std::span<const int32_t> values, int64_t sequence_tokens,
                                    std::span<const int64_t> positions) {
  check(sequence_tokens > 0 && values.size() % static_cast<size_t>(sequence_tokens) == 0,
        "{} tokens are not whole sequences of {}", values.size(), sequence_tokens);
  std::vector<int32_t> taken;
  taken.reserve(values.size() / static_cast<size_t>(sequence_tokens) * positions.size());
  for (size_t begin = 0; begin < values.size(); begin += static_cast<size_t>(sequence_tokens)) {
    for (const int64_t position : positions) {
      check(position >= 0 && position < sequence_tokens, "position {} of a sequence of {}",
            position, sequence_tokens);
      taken.push_back(values[begin + static_cast<size_t>(position)]);
    }
  }
  return taken;
}

std::vector<int32_t> shift_sequences(std::span<const int32_t> values, int64_t sequence_tokens,
                                     int64_t shift, int32_t beyond) {
  std::vector<int32_t> shifted(values.size(), beyond);
  const int64_t kept = std::max<int64_t>(sequence_tokens - shift, 0);
  for (size_t begin = 0; begin < values.size(); begin += static_cast<size_t>(sequence_tokens)) {
    const auto sequence = values.subspan(begin, static_cast<size_t>(sequence_tokens));
    std::ranges::copy(sequence.last(static_cast<size_t>(kept)),
                      shifted.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  return shifted;
}

int64_t count_labels(std::span<const int32_t> labels, int64_t sequence_tokens, int64_t skipped) {
  int64_t valid = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto position = static_cast<int64_t>(i) % sequence_tokens;
    valid += labels[i] >= 0 && position >= skipped ? 1 : 0;
  }
  return valid;
}

StepBatch::StepBatch(const BatchShape& shape, int64_t rank_begin, int64_t rank_end,
                     int64_t sequence_tokens, int64_t consumed_samples)
    : shape_(shape),
      rank_begin_(rank_begin),
      rank_end_(rank_end),
      sequence_tokens_(sequence_tokens),
      consumed_samples_(consumed_samples) {
  const int64_t num_rows = (rank_end - rank_begin) * shape.num_microbatches * shape.microbatch;
  tokens_.resize(static_cast<size_t>(num_rows * sequence_tokens));
  labels_.resize(tokens_.size());
  references_.resize(static_cast<size_t>(num_rows));
}

size_t StepBatch::offset_elems(int64_t rank, int64_t microbatch_index) const {
  check(rank >= rank_begin_ && rank < rank_end_ && microbatch_index >= 0 &&
            microbatch_index < shape_.num_microbatches,
        "microbatch {} of rank {} in a step of ranks [{}, {}) and {} microbatches",
        microbatch_index, rank, rank_begin_, rank_end_, shape_.num_microbatches);
  const int64_t index = (rank - rank_begin_) * shape_.num_microbatches + microbatch_index;
  return static_cast<size_t>(index * shape_.microbatch * sequence_tokens_);
}

std::span<const int32_t> StepBatch::tokens(int64_t rank, int64_t microbatch_index) const {
  return std::span(tokens_).subspan(offset_elems(rank, microbatch_index),
                                    static_cast<size_t>(shape_.microbatch * sequence_tokens_));
}

std::span<const int32_t> StepBatch::labels(int64_t rank, int64_t microbatch_index) const {
  return std::span(labels_).subspan(offset_elems(rank, microbatch_index),
                                    static_cast<size_t>(shape_.microbatch * sequence_tokens_));
}

std::span<const float> StepBatch::references(int64_t rank, int64_t microbatch_index) const {
  return std::span(references_)
      .subspan(offset_elems(rank, microbatch_index) / static_cast<size_t>(sequence_tokens_),
               static_cast<size_t>(shape_.microbatch));
}

std::vector<int32_t> StepBatch::document_starts_at(int64_t rank, int64_t microbatch_index,
                                                   std::span<const int64_t> positions) const {
  check(eod_.has_value(), "no token ends the documents of this batch");
  return take_positions(document_starts(tokens(rank, microbatch_index), sequence_tokens_, *eod_),
                        sequence_tokens_, positions);
}

std::vector<int32_t> StepBatch::tokens_at(int64_t rank, int64_t microbatch_index,
                                          std::span<const int64_t> positions) const {
  return take_positions(tokens(rank, microbatch_index), sequence_tokens_, positions);
}

std::vector<int32_t> StepBatch::labels_at(int64_t rank, int64_t microbatch_index,
                                          std::span<const int64_t> positions) const {
  return take_positions(labels(rank, microbatch_index), sequence_tokens_, positions);
}

void StepBatch::read_row(const SampleSource& source, int64_t rank, int64_t microbatch_index,
                         int64_t row) {
  const size_t offset =
      offset_elems(rank, microbatch_index) + static_cast<size_t>(row * sequence_tokens_);
  const auto count = static_cast<size_t>(sequence_tokens_);
  const int64_t sample = first_sample_of(shape_, consumed_samples_, rank, microbatch_index) + row;
  source.read(sample, std::span(tokens_).subspan(offset, count),
              std::span(labels_).subspan(offset, count));
  references_[offset / count] = source.reference(sample);
}

/// The reading thread and its shared state with `next`. At most `prefetch_steps` batches wait; the
/// thread ends after the last step, after an error, or on request.
struct BatchLoader::Queue {
  Queue(const SampleSource& source_in, const BatchLoaderOptions& options_in, int64_t num_steps)
      : source(source_in), options(options_in), reader([this, num_steps] { run(num_steps); }) {}

  ~Queue() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    reader.join();
  }

  void run(int64_t num_steps) {
    try {
      for (int64_t step = 0; step < num_steps && !stop; ++step) {
        push(read_step(options.consumed_samples + step * options.shape.samples_per_step()));
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    finished = true;
    changed.notify_all();
  }

  StepBatch read_step(int64_t consumed_samples) {
    StepBatch batch(options.shape, options.rank_begin, options.rank_end, source.sequence_tokens(),
                    consumed_samples);
    batch.set_eod(options.eod);
    for (int64_t rank = options.rank_begin; rank < options.rank_end; ++rank) {
      for (int64_t m = 0; m < options.shape.num_microbatches; ++m) {
        for (int64_t row = 0; row < options.shape.microbatch && !stop; ++row) {
          batch.read_row(source, rank, m, row);
        }
      }
    }
    return batch;
  }

  void push(StepBatch batch) {
    std::unique_lock lock(mutex);
    const auto capacity = static_cast<size_t>(options.prefetch_steps);
    changed.wait(lock, [&] { return stop || ready.size() < capacity; });
    ready.push_back(std::move(batch));
    changed.notify_all();
  }

  /// Batches that were read before an error come first.
  std::optional<StepBatch> pop() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return finished || !ready.empty(); });
    if (ready.empty()) {
      if (error) {
        std::rethrow_exception(error);
      }
      return std::nullopt;
    }
    std::optional<StepBatch> batch(std::move(ready.front()));
    ready.pop_front();
    changed.notify_all();
    return batch;
  }

  const SampleSource& source;
  const BatchLoaderOptions options;
  std::mutex mutex;
  std::condition_variable changed;  // anything below changed
  std::deque<StepBatch> ready;
  std::exception_ptr error;
  bool finished = false;
  std::atomic<bool> stop = false;
  std::thread reader;  // last member: started when all others exist
};

BatchLoader::BatchLoader(const SampleSource& source, const BatchLoaderOptions& options) {
  const BatchLoaderOptions resolved = checked(options);
  const int64_t num_left = source.num_samples() - resolved.consumed_samples;
  num_steps_ = std::max<int64_t>(0, num_left / resolved.shape.samples_per_step());
  queue_ = std::make_unique<Queue>(source, resolved, num_steps_);
}

BatchLoader::~BatchLoader() = default;

std::optional<StepBatch> BatchLoader::next() {
  return queue_->pop();
}

}  // namespace braid
