#include "memory/verify_plan.h"

#include <algorithm>
#include <map>

#include "base/errors.h"

namespace braid {
namespace {

/// The number of finished tasks of each stream.
using Clock = std::vector<uint32_t>;

void join(Clock& into, const Clock& other) {
  for (size_t stream = 0; stream < into.size(); ++stream) {
    into[stream] = std::max(into[stream], other[stream]);
  }
}

bool covers(const Clock& clock, const Clock& needed) {
  for (size_t stream = 0; stream < needed.size(); ++stream) {
    if (clock[stream] < needed[stream]) {
      return false;
    }
  }
  return true;
}

class PlanVerifier {
 public:
  PlanVerifier(const Program& program, const MemoryPlan& plan, const StepPlan& step,
               size_t max_violations)
      : program_(program), plan_(plan), step_(step), max_violations_(max_violations) {}

  std::vector<Violation> run() {
    check_places();
    check_persistent();
    if (violations_.empty()) {
      check_turns();
    }
    return std::move(violations_);
  }

 private:
  struct Turn {
    Clock accessed;   // empty: not accessed yet
    Clock must_wait;  // accesses of all earlier owners of any of its bytes
    uint32_t evicted_by = UINT32_MAX;
  };
  struct Owned {
    int64_t end;
    uint32_t buffer;
  };
  using Owners = std::map<int64_t, Owned>;  // by first byte

  static bool is_host(const Buffer& buffer) { return buffer.placement == Placement::kHost; }

  template <class... Args>
  void report(fmt::format_string<Args...> format, Args&&... args) {
    if (violations_.size() < max_violations_) {
      violations_.push_back({fmt::format(format, std::forward<Args>(args)...)});
    }
  }

  void check_places() {
    if (step_.offset_bytes.size() != program_.buffers.size()) {
      report("the plan has {} offsets for {} buffers", step_.offset_bytes.size(),
             program_.buffers.size());
      return;
    }
    if (step_.arena_bytes > plan_.step_bytes) {
      report("the step arena needs {} bytes and has {}", step_.arena_bytes, plan_.step_bytes);
    }
    if (step_.host_arena_bytes > plan_.host_bytes) {
      report("the host arena needs {} bytes and has {}", step_.host_arena_bytes, plan_.host_bytes);
    }
    std::vector<bool> is_touched(program_.buffers.size(), false);
    for (const BufferRange& range : program_.operands) {
      is_touched[range.buffer.index()] =
          is_touched[range.buffer.index()] || range.begin != range.end;
    }
    for (size_t index = 0; index < program_.buffers.size(); ++index) {
      const Buffer& buffer = program_.buffers[index];
      const bool is_persistent = buffer.lifetime == Lifetime::kPersistent;
      const int64_t arena_bytes = is_persistent     ? plan_.persistent_bytes
                                  : is_host(buffer) ? step_.host_arena_bytes
                                                    : step_.arena_bytes;
      if (is_persistent && is_host(buffer)) {
        report("persistent buffer {} is placed on the host", buffer.name);
      }
      const int64_t offset = step_.offset_bytes[index];
      if (offset < 0 || offset % kBufferAlignmentBytes != 0) {
        report("buffer {} lies at {}, not a multiple of {}", buffer.name, offset,
               kBufferAlignmentBytes);
      }
      if ((is_touched[index] || is_persistent) && offset + buffer.size_bytes() > arena_bytes) {
        report("buffer {} of {} bytes at {} ends outside its arena of {}", buffer.name,
               buffer.size_bytes(), offset, arena_bytes);
      }
    }
  }

  void check_persistent() {
    std::map<int64_t, const Buffer*> by_offset;
    for (size_t index = 0; index < step_.offset_bytes.size(); ++index) {
      const Buffer& buffer = program_.buffers[index];
      if (buffer.lifetime != Lifetime::kPersistent || buffer.size_bytes() == 0) {
        continue;
      }
      const auto named = plan_.persistent_offset_bytes.find(buffer.name);
      if (named == plan_.persistent_offset_bytes.end() ||
          named->second != step_.offset_bytes[index]) {
        report("persistent buffer {} is not where its name says", buffer.name);
      }
      const auto [entry, is_new] = by_offset.emplace(step_.offset_bytes[index], &buffer);
      if (!is_new && entry->second->name != buffer.name) {
        report("persistent buffers {} and {} overlap", entry->second->name, buffer.name);
      }
    }
    for (auto entry = by_offset.begin(); entry != by_offset.end(); ++entry) {
      const auto next = std::next(entry);
      if (next != by_offset.end() && entry->first + entry->second->size_bytes() > next->first) {
        report("persistent buffers {} and {} overlap", entry->second->name, next->second->name);
      }
    }
  }

  void check_turns() {
    const size_t num_streams = program_.streams.size();
    turns_.resize(program_.buffers.size());
    std::vector<Clock> at_stream(num_streams, Clock(num_streams, 0));
    std::vector<Clock> at_event(program_.num_events);
    for (size_t index = 0; index < program_.tasks.size(); ++index) {
      const Task& task = program_.tasks[index];
      Clock& clock = at_stream[task.stream.index()];
      for (const EventId event : program_.waits_of(task)) {
        if (at_event[event.index()].empty()) {
          report("{} waits for event {} before it is recorded",
                 describe_task(program_, TaskId(index)), event.value);
          return;
        }
        join(clock, at_event[event.index()]);
      }
      for (const BufferRange& range : program_.operands_of(task)) {
        const Buffer& buffer = program_.buffers[range.buffer.index()];
        if (buffer.lifetime == Lifetime::kStep && range.begin != range.end) {
          access(range.buffer.value, TaskId(index), clock);
        }
      }
      ++clock[task.stream.index()];
      if (task.record.valid()) {
        at_event[task.record.index()] = clock;
      }
    }
  }

  void access(uint32_t buffer, TaskId task, const Clock& clock) {
    Turn& turn = turns_[buffer];
    if (turn.accessed.empty()) {
      turn.accessed.resize(program_.streams.size(), 0);
      turn.must_wait.resize(program_.streams.size(), 0);
      take_over(buffer);
    }
    if (turn.evicted_by != UINT32_MAX) {
      report("{} touches buffer {} after its bytes went to buffer {}",
             describe_task(program_, task), program_.buffers[buffer].name,
             program_.buffers[turn.evicted_by].name);
    }
    if (!covers(clock, turn.must_wait)) {
      report("{} touches buffer {} while another buffer in the same bytes may be in use",
             describe_task(program_, task), program_.buffers[buffer].name);
    }
    const size_t stream = program_.tasks[task.index()].stream.index();
    turn.accessed[stream] = std::max(turn.accessed[stream], clock[stream] + 1);
  }

  /// Makes `buffer` the owner of its bytes; it must wait for all accesses of the previous owners.
  void take_over(uint32_t buffer) {
    const int64_t begin = step_.offset_bytes[buffer];
    const int64_t end = begin + program_.buffers[buffer].size_bytes();
    Owners& owners = is_host(program_.buffers[buffer]) ? host_owners_ : step_owners_;
    split_at(owners, begin);
    split_at(owners, end);
    auto part = owners.lower_bound(begin);
    while (part != owners.end() && part->first < end) {
      Turn& before = turns_[part->second.buffer];
      before.evicted_by = buffer;
      join(turns_[buffer].must_wait, before.accessed);
      part = owners.erase(part);
    }
    owners.emplace(begin, Owned{end, buffer});
  }

  static void split_at(Owners& owners, int64_t offset) {
    auto part = owners.lower_bound(offset);
    if (part == owners.begin()) {
      return;
    }
    --part;
    if (part->second.end > offset) {
      owners.emplace(offset, part->second);
      part->second.end = offset;
    }
  }

  const Program& program_;
  const MemoryPlan& plan_;
  const StepPlan& step_;
  size_t max_violations_;
  std::vector<Turn> turns_;
  Owners step_owners_;
  Owners host_owners_;
  std::vector<Violation> violations_;
};

}  // namespace

std::vector<Violation> verify_plan(const Program& program, const MemoryPlan& plan,
                                   size_t program_index, size_t max_violations) {
  check(program_index < plan.programs.size(), "program {} of a plan of {} programs", program_index,
        plan.programs.size());
  return PlanVerifier(program, plan, plan.programs[program_index], max_violations).run();
}

}  // namespace braid
