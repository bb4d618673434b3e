#include "state/state_transfer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/dtype.h"
#include "base/errors.h"
#include "state/state_shards.h"

namespace braid {
namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
constexpr auto kBFloat16Bytes = static_cast<int64_t>(sizeof(BFloat16));

int64_t largest_piece_elems(const ParameterLayout& layout) {
  int64_t largest = 0;
  for (const ParameterUnit& unit : layout.units) {
    largest = std::max(largest, unit.num_elems);
  }
  return std::min(largest, kStatePieceElems);
}

/// The executor of the first rank in this process.
Executor& first_executor(std::span<Executor* const> executors) {
  const auto found =
      std::ranges::find_if(executors, [](const Executor* one) { return one != nullptr; });
  check(found != executors.end(), "no rank is in this process");
  return **found;
}

template <class T>
std::span<T> elements_of(const HostBlock& block, int64_t count) {
  return {reinterpret_cast<T*>(block.bytes.data()), static_cast<size_t>(count)};
}

/// Calls visit(begin, count) for each piece of a unit.
template <class Visit>
void for_each_piece(const ParameterUnit& unit, const Visit& visit) {
  for (int64_t begin = 0; begin < unit.num_elems; begin += kStatePieceElems) {
    visit(begin, std::min(kStatePieceElems, unit.num_elems - begin));
  }
}

/// One transfer of a whole state to executors.
class StateWriter {
 public:
  StateWriter(const StateSource& source, const ParameterLayout& whole, const StateMap& map,
              std::span<Executor* const> executors, WorkerPool& workers)
      : source_(source), whole_(whole), map_(map), executors_(executors), workers_(workers) {
    const int64_t piece_elems = largest_piece_elems(whole);
    Executor& first = first_executor(executors);
    piece_ = first.host_block(piece_elems * kFloatBytes);
    rounded_ = first.host_block(piece_elems * kBFloat16Bytes);
    packed_ = first.host_block(piece_elems * kFloatBytes);
  }

  void run() {
    zero_buffers();
    for (size_t unit = 0; unit < whole_.units.size(); ++unit) {
      write_weights(unit);
      write_part(StatePart::kExpAvg, unit);
      write_part(StatePart::kExpAvgSq, unit);
      if (!begins_averages()) {
        write_part(StatePart::kEma, unit);
      }
    }
  }

 private:
  bool is_zero(StateBuffer kind) const {
    return (kind == StateBuffer::kExpAvg && source_.is_zero(StatePart::kExpAvg)) ||
           (kind == StateBuffer::kExpAvgSq && source_.is_zero(StatePart::kExpAvgSq));
  }

  /// Whether averages begin with the weights.
  bool begins_averages() const { return source_.is_zero(StatePart::kEma); }

  /// Zeroes buffers that nothing is written to, and those that are only partly written.
  void zero_buffers() {
    for (const StateBufferFacts& buffer : map_.buffers()) {
      if (is_here(buffer.rank) && (buffer.has_gaps || is_zero(buffer.kind))) {
        executors_[buffer.rank]->zero(buffer.name);
      }
    }
  }

  void write_weights(size_t unit) {
    for_each_piece(whole_.units[unit], [&](int64_t begin, int64_t count) {
      const auto of_weights = [&](StateBuffer kind) { return is_wanted(kind, unit, begin, count); };
      std::vector<StateBuffer> kinds{StateBuffer::kMainWeight, StateBuffer::kParam};
      if (begins_averages()) {
        kinds.push_back(StateBuffer::kEma);
      }
      if (std::ranges::none_of(kinds, of_weights)) {
        return;
      }
      const auto values = elements_of<float>(piece_, count);
      source_.read(StatePart::kWeights, unit, begin, values, workers_);
      std::span<const BFloat16> narrow;
      for (const StateBuffer kind : kinds) {
        put(kind, unit, begin, values, narrow);
      }
    });
  }

  /// Moments or averages.
  void write_part(StatePart part, size_t unit) {
    const StateBuffer kind = buffer_of(part, map_, unit);
    if (is_zero(kind) || !map_.has(kind)) {
      return;
    }
    for_each_piece(whole_.units[unit], [&](int64_t begin, int64_t count) {
      if (!is_wanted(kind, unit, begin, count)) {
        return;
      }
      const auto values = elements_of<float>(piece_, count);
      source_.read(part, unit, begin, values, workers_);
      std::span<const BFloat16> narrow;
      put(kind, unit, begin, values, narrow);
    });
  }

  /// Whether a rank of this process holds any part of it.
  bool is_wanted(StateBuffer kind, size_t unit, int64_t begin, int64_t count) const {
    bool wanted = false;
    map_.for_each_copy(
        kind, unit, begin, count, [&](const StateRun&) { wanted = true; },
        [this](size_t rank) { return is_here(rank); });
    return wanted;
  }

  bool is_here(size_t rank) const { return executors_[rank] != nullptr; }

  std::span<const BFloat16> rounded(std::span<const float> values) {
    constexpr int64_t kGrainElems = 1 << 16;
    const auto count = static_cast<int64_t>(values.size());
    const auto result = elements_of<BFloat16>(rounded_, count);
    workers_.run(count, kGrainElems, [&](int, int64_t begin, int64_t end) {
      std::copy(values.begin() + begin, values.begin() + end, result.begin() + begin);
    });
    return result;
  }

  /// `values` are elements from `begin` of the unit; `narrow` are the same rounded, computed on
  /// first use.
  void put(StateBuffer kind, size_t unit, int64_t begin, std::span<const float> values,
           std::span<const BFloat16>& narrow) {
    const auto count = static_cast<int64_t>(values.size());
    std::map<size_t, std::vector<StateRun>> of_buffer;
    map_.for_each_copy(
        kind, unit, begin, count,
        [&](const StateRun& run) { of_buffer[run.buffer].push_back(run); },
        [this](size_t rank) { return is_here(rank); });
    for (const auto& [index, runs] : of_buffer) {
      const StateBufferFacts& buffer = map_.buffers()[index];
      if (buffer.dtype == DType::kBF16) {
        narrow = narrow.empty() ? rounded(values) : narrow;
        write_runs<BFloat16>(buffer, runs, begin, narrow);
      } else {
        write_runs<float>(buffer, runs, begin, values);
      }
    }
  }

  /// `values` are elements from `values_begin` of the unit, `runs` ascend in the buffer. Adjacent
  /// runs are written at once: a rank that has columns of a matrix has a run per row, and a hundred
  /// thousand small writes take longer than one write of all bytes.
  template <class T>
  void write_runs(const StateBufferFacts& buffer, std::span<const StateRun> runs,
                  int64_t values_begin, std::span<const T> values) {
    for (size_t first = 0, end = 0; first < runs.size(); first = end) {
      int64_t buffer_end = runs[first].buffer_begin;
      for (end = first; end < runs.size() && runs[end].buffer_begin == buffer_end; ++end) {
        buffer_end += runs[end].num_elems;
      }
      const auto adjacent = runs.subspan(first, end - first);
      const auto begin = runs[first].buffer_begin;
      const std::span<const T> packed =
          adjacent.size() == 1
              ? values.subspan(static_cast<size_t>(adjacent[0].unit_begin - values_begin),
                               static_cast<size_t>(adjacent[0].num_elems))
              : pack(adjacent, buffer_end - begin, values_begin, values);
      executors_[buffer.rank]->write(buffer.name, begin * static_cast<int64_t>(sizeof(T)),
                                     std::as_bytes(packed));
    }
  }

  /// Concatenates the elements of the runs.
  template <class T>
  std::span<const T> pack(std::span<const StateRun> runs, int64_t num_elems, int64_t values_begin,
                          std::span<const T> values) {
    constexpr int64_t kGrainRuns = 64;
    const std::span<T> packed = elements_of<T>(packed_, num_elems);
    const int64_t begin = runs[0].buffer_begin;
    workers_.run(
        static_cast<int64_t>(runs.size()), kGrainRuns, [&](int, int64_t first, int64_t end) {
          for (const StateRun& run :
               runs.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first))) {
            const auto* const source = values.data() + (run.unit_begin - values_begin);
            std::copy_n(source, run.num_elems, packed.data() + (run.buffer_begin - begin));
          }
        });
    return packed;
  }

  const StateSource& source_;
  const ParameterLayout& whole_;
  const StateMap& map_;
  std::span<Executor* const> executors_;
  WorkerPool& workers_;
  HostBlock piece_;
  HostBlock rounded_;
  HostBlock packed_;
};

}  // namespace

void write_state(const StateSource& source, const ParameterLayout& whole, const StateMap& map,
                 std::span<Executor* const> executors, WorkerPool& workers) {
  StateWriter(source, whole, map, executors, workers).run();
}

void widen_elements(DType dtype, std::span<const std::byte> elements, std::span<float> out) {
  if (dtype == DType::kF32) {
    std::memcpy(out.data(), elements.data(), elements.size());
    return;
  }
  check(dtype == DType::kBF16, "elements of {} are no state", dtype_name(dtype));
  // In ascending order no element is overwritten before it is read.
  for (size_t i = 0; i < out.size(); ++i) {
    BFloat16 value;
    std::memcpy(&value, &elements[i * sizeof(BFloat16)], sizeof(BFloat16));
    out[i] = value;
  }
}

void read_elements(Executor& executor, const StateBufferFacts& buffer, int64_t begin,
                   std::span<float> out) {
  const std::span<std::byte> bytes = std::as_writable_bytes(out);
  if (buffer.dtype == DType::kF32) {
    executor.read(buffer.name, begin * kFloatBytes, bytes);
    return;
  }
  const std::span<std::byte> narrow = bytes.last(out.size() * sizeof(BFloat16));
  executor.read(buffer.name, begin * kBFloat16Bytes, narrow);
  widen_elements(buffer.dtype, narrow, out);
}

void DeviceState::read(StatePart part, size_t unit, int64_t begin, std::span<float> out,
                       WorkerPool&) const {
  const StateBuffer kind = buffer_of(part, map_, unit);
  std::fill(out.begin(), out.end(), 0.0f);
  const auto count = static_cast<int64_t>(out.size());
  map_.for_each_element(kind, unit, begin, count, [&](const StateRun& run) {
    const auto part_of_out = out.subspan(static_cast<size_t>(run.unit_begin - begin),
                                         static_cast<size_t>(run.num_elems));
    read_elements(*executors_[run.rank], map_.buffers()[run.buffer], run.buffer_begin, part_of_out);
  });
}

HostBlock DeviceState::host_block(int64_t size_bytes) const {
  return first_executor(executors_).host_block(size_bytes);
}

}  // namespace braid
