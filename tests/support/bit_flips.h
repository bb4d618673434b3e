#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "runtime/engine.h"
#include "state/state_map.h"

namespace braid {

/// One bit of a persistent buffer of a rank.
struct BitFlip {
  size_t rank = 0;
  std::string buffer;
  int64_t byte = 0;
  int bit = 0;
};

/// As a failing memory cell does it; twice is as before. Requires: no step is in flight.
inline void flip(Executor& executor, const BitFlip& where) {
  std::byte value{};
  executor.read(where.buffer, where.byte, {&value, 1});
  value ^= std::byte{1} << where.bit;
  executor.write(where.buffer, where.byte, {&value, 1});
}

/// The executors that an engine makes, by rank, for tests that touch their memory.
class KnownExecutors {
 public:
  explicit KnownExecutors(size_t num_ranks) : by_rank_(num_ranks, nullptr) {}

  void add_to(EngineOptions& options) {
    options.wrap_executor = [this](std::unique_ptr<Executor> made, int rank) {
      by_rank_[static_cast<size_t>(rank)] = made.get();
      return made;
    };
  }
  Executor& operator[](size_t rank) { return *by_rank_[rank]; }

 private:
  std::vector<Executor*> by_rank_;
};

/// An element of the state of a model, and every place of it: found element by element, without
/// what the check itself computes.
struct CopiedElement {
  StateBuffer kind = StateBuffer::kParam;
  std::string parameter;
  std::vector<StateRun> copies;  // of one element each
};

/// Those with copies on several ranks, of which each is up to date between two steps.
inline std::vector<CopiedElement> copied_elements(const RunPlan& plan, const StateMap& map) {
  std::vector<CopiedElement> elements;
  for (const StateBuffer kind : {StateBuffer::kParam, StateBuffer::kMainWeight,
                                 StateBuffer::kExpAvg, StateBuffer::kExpAvgSq}) {
    for (const ParameterSlot& slot : plan.layout.slots) {
      std::vector<CopiedElement> of_slot(
          static_cast<size_t>(slot.end - slot.begin),
          {.kind = kind, .parameter = plan.layout.parameters[slot.parameter].name, .copies = {}});
      map.for_each_copy(kind, slot.unit, slot.begin, slot.end - slot.begin,
                        [&](const StateRun& run) {
                          for (int64_t i = 0; i < run.num_elems; ++i) {
                            StateRun one = run;
                            one.buffer_begin += i;
                            one.num_elems = 1;
                            const int64_t at = run.unit_begin + i - slot.begin;
                            of_slot[static_cast<size_t>(at)].copies.push_back(one);
                          }
                        });
      for (CopiedElement& element : of_slot) {
        if (element.copies.size() > 1) {
          elements.push_back(std::move(element));
        }
      }
    }
  }
  return elements;
}

/// A random bit of one copy.
inline BitFlip random_flip(const StateMap& map, const StateRun& copy, std::mt19937& random) {
  const StateBufferFacts& buffer = map.buffers()[copy.buffer];
  const auto elem_bytes = static_cast<int64_t>(dtype_bytes(buffer.dtype));
  const auto bit = static_cast<int64_t>(random() % (8 * static_cast<uint32_t>(elem_bytes)));
  return {.rank = copy.rank,
          .buffer = buffer.name,
          .byte = copy.buffer_begin * elem_bytes + bit / 8,
          .bit = static_cast<int>(bit % 8)};
}

}  // namespace braid
