#include "ir/verify.h"

#include <algorithm>
#include <unordered_set>

#include "base/errors.h"
#include "base/text.h"
#include "ir/race_detector.h"

namespace braid {
namespace {

constexpr size_t kMaxStreams = 1024;  // vector clocks use streams x streams memory

/// Collects violations up to a limit.
class Findings {
 public:
  explicit Findings(size_t max_violations) : max_violations_(max_violations) {}

  bool full() const { return violations_.size() >= max_violations_; }
  bool empty() const { return violations_.empty(); }
  /// Returns false if the limit is reached.
  bool add(std::string message) {
    if (!full()) {
      violations_.push_back({std::move(message)});
    }
    return !full();
  }
  std::vector<Violation> take() { return std::move(violations_); }

 private:
  size_t max_violations_;
  std::vector<Violation> violations_;
};

/// Checks everything that does not depend on the order of tasks. If it finds no fault, all indices
/// are safe to use.
class StructureChecker {
 public:
  StructureChecker(const Program& program, Findings& findings)
      : program_(program),
        findings_(findings),
        is_recorded_(std::min<size_t>(program.num_events, program.tasks.size())) {}

  void run() {
    check_program();
    check_buffers();
    check_groups();
    if (!findings_.empty()) {
      return;  // the task checks rely on valid groups and buffers
    }
    check_spec_groups();
    for (size_t i = 0; i < program_.tasks.size() && !findings_.full(); ++i) {
      check_task(TaskId(i));
    }
  }

 private:
  template <class... Args>
  void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
    if (!condition) {
      findings_.add(fmt::format(format, std::forward<Args>(args)...));
    }
  }

  void check_program() {
    require(program_.rank >= 0 && program_.rank < program_.num_ranks,
            "rank {} is not one of {} ranks", program_.rank, program_.num_ranks);
    require(program_.num_events <= program_.tasks.size(),
            "{} events, but only {} tasks that could record them", program_.num_events,
            program_.tasks.size());
    require(program_.streams.size() <= kMaxStreams, "{} streams, but at most {} are possible",
            program_.streams.size(), kMaxStreams);
  }

  void check_buffers() {
    std::unordered_set<std::string_view> persistent;
    for (const Buffer& buffer : program_.buffers) {
      if (!is_valid_shape(buffer.shape)) {
        findings_.add(fmt::format("buffer {}: shape {} is negative or too large", buffer.name,
                                  to_string(buffer.shape)));
      }
      // Programs share persistent buffers by name.
      if (buffer.lifetime == Lifetime::kPersistent && !persistent.insert(buffer.name).second) {
        findings_.add(
            fmt::format("buffer {}: a second persistent buffer has this name", buffer.name));
      }
    }
  }

  void check_groups() {
    for (const Group& group : program_.groups) {
      std::vector<int> ranks = group.ranks;
      std::ranges::sort(ranks);
      require(!ranks.empty(), "group {}: no ranks", group.name);
      require(ranks.empty() || (ranks.front() >= 0 && ranks.back() < program_.num_ranks),
              "group {}: a rank that is not one of {} ranks", group.name, program_.num_ranks);
      require(std::ranges::adjacent_find(ranks) == ranks.end(), "group {}: a rank occurs twice",
              group.name);
    }
  }

  /// Finds faults of the "group" attribute, once per spec because tasks share specs.
  void check_spec_groups() {
    spec_faults_.reserve(program_.specs.size());
    for (const OpSpec& spec : program_.specs.all()) {
      const AttributeValue* value = spec.find_attribute("group");
      spec_faults_.push_back(value == nullptr ? std::string() : group_fault(*value));
    }
  }

  std::string group_fault(const AttributeValue& value) const {
    const int64_t* index = std::get_if<int64_t>(&value);
    if (index == nullptr) {
      return "attribute group is not the index of a group";
    }
    if (*index < 0 || *index >= static_cast<int64_t>(program_.groups.size())) {
      return fmt::format("group #{} does not exist", *index);
    }
    const Group& group = program_.groups[static_cast<size_t>(*index)];
    return std::ranges::find(group.ranks, program_.rank) != group.ranks.end()
               ? std::string()
               : fmt::format("group {} does not contain this rank, {}", group.name, program_.rank);
  }

  void check_task(TaskId id) {
    const Task& task = program_.tasks[id.index()];
    if (const std::string fault = task_fault(task); !fault.empty()) {
      findings_.add(fmt::format("task {} ({}): {}", id.value, describe_task(program_, id), fault));
      return;
    }
    const auto ranges = program_.operands_of(task);
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (const std::string fault =
              operand_fault(program_, program_.spec(task).operands[i], ranges[i]);
          !fault.empty()) {
        findings_.add(fmt::format("task {} ({}): operand {}: {}", id.value,
                                  describe_task(program_, id), i, fault));
      }
    }
    if (const std::string fault = event_fault(task); !fault.empty()) {
      findings_.add(fmt::format("task {} ({}): {}", id.value, describe_task(program_, id), fault));
    }
  }

  std::string task_fault(const Task& task) const {
    if (task.spec.value >= program_.specs.size()) {
      return fmt::format("spec #{} does not exist", task.spec.value);
    }
    if (task.stream.value >= program_.streams.size()) {
      return fmt::format("stream #{} does not exist", task.stream.value);
    }
    if (task.label.site.valid() && task.label.site.value >= program_.sites.size()) {
      return fmt::format("site #{} does not exist", task.label.site.value);
    }
    const size_t num_operands = program_.spec(task).operands.size();
    if (task.operands_begin > program_.operands.size() ||
        num_operands > program_.operands.size() - task.operands_begin) {
      return fmt::format("operands [{}, {}) do not exist", task.operands_begin,
                         task.operands_begin + num_operands);
    }
    if (task.waits_begin > program_.waits.size() ||
        task.num_waits > program_.waits.size() - task.waits_begin) {
      return fmt::format("waits [{}, {}) do not exist", task.waits_begin,
                         size_t{task.waits_begin} + task.num_waits);
    }
    return spec_faults_[task.spec.index()];
  }

  std::string event_fault(const Task& task) {
    for (const EventId event : program_.waits_of(task)) {
      if (event.value >= is_recorded_.size() || !is_recorded_[event.index()]) {
        return fmt::format("waits for event e{}, which no task before it records", event.value);
      }
    }
    if (!task.record.valid()) {
      return {};
    }
    if (task.record.value >= is_recorded_.size()) {
      return fmt::format("records event e{} of {}", task.record.value, is_recorded_.size());
    }
    if (is_recorded_[task.record.index()]) {
      return fmt::format("records event e{}, which a task before it records", task.record.value);
    }
    is_recorded_[task.record.index()] = true;
    return {};
  }

  const Program& program_;
  Findings& findings_;
  std::vector<std::string> spec_faults_;
  std::vector<bool> is_recorded_;
};

}  // namespace

std::vector<Violation> verify(const Program& program, size_t max_violations, Ordering ordering) {
  Findings findings(max_violations);
  StructureChecker(program, findings).run();
  if (findings.empty() && !findings.full()) {
    RaceDetector(program, ordering, [&](std::string message) {
      return findings.add(std::move(message));
    }).run();
  }
  return findings.take();
}

void verify_or_throw(const Program& program, std::string_view after, Ordering ordering) {
  constexpr size_t kMaxShown = 4;
  const std::vector<Violation> violations = verify(program, kMaxShown, ordering);
  if (violations.empty()) {
    return;
  }
  std::vector<std::string> messages;
  for (const Violation& violation : violations) {
    messages.push_back(violation.message);
  }
  throw_internal_error("program {} is wrong after {}: {}", program.name, after,
                       join(messages, "; "));
}

}  // namespace braid
