#include "ir/dependencies.h"

#include <algorithm>

namespace braid {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

/// The accesses that the next access to a part of a buffer may depend on.
struct History {
  uint32_t writer = kNone;   ///< task of the last write
  uint32_t readers = kNone;  ///< head of the list of reads since that write, in ReaderPool
};

/// Linked lists that grow only at the front. Two parts of a split buffer share the tail of their
/// lists.
class ReaderPool {
 public:
  void push(uint32_t& head, uint32_t task) {
    if (head == kNone || nodes_[head].task != task) {
      nodes_.push_back({task, head, kNone});
      head = static_cast<uint32_t>(nodes_.size() - 1);
    }
  }

  /// Calls `visit(task)` for each entry of a list and stops at a node already visited for
  /// `for_task`. A shared tail is therefore visited once per task, not once per part.
  template <class Visit>
  void visit_once(uint32_t head, uint32_t for_task, Visit&& visit) {
    for (uint32_t node = head; node != kNone && nodes_[node].visited_by != for_task;
         node = nodes_[node].next) {
      nodes_[node].visited_by = for_task;
      visit(nodes_[node].task);
    }
  }

 private:
  struct Node {
    uint32_t task;
    uint32_t next;
    uint32_t visited_by;
  };
  std::vector<Node> nodes_;
};

/// The elements from `begin` to the start of the next part, or to the end of the buffer.
struct Part {
  int64_t begin = 0;
  History history;
};

class DependencyBuilder {
 public:
  explicit DependencyBuilder(const Program& program)
      : program_(program),
        whole_(program.buffers.size()),
        split_index_(program.buffers.size(), kNone) {
    num_elems_.reserve(program.buffers.size());
    for (const Buffer& buffer : program.buffers) {
      num_elems_.push_back(buffer.num_elems());
    }
    graph_.row_begin.reserve(program.tasks.size() + 1);
    graph_.predecessors.reserve(program.operands.size());
  }

  DependencyGraph run() {
    graph_.row_begin.push_back(0);
    for (uint32_t task = 0; task < program_.tasks.size(); ++task) {
      add_task(task);
    }
    return std::move(graph_);
  }

 private:
  void add_task(uint32_t task) {
    const Task& it = program_.tasks[task];
    const auto ranges = program_.operands_of(it);
    const auto& specs = program_.spec(it).operands;
    found_.clear();
    // Collect the predecessors before recording this task's accesses, so that it cannot depend on
    // itself.
    for (size_t i = 0; i < ranges.size(); ++i) {
      collect(task, ranges[i], specs[i].access);
    }
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (specs[i].access == Access::kRead) {
        for_each_history(ranges[i], [&](History& part) { readers_.push(part.readers, task); });
      }
    }
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (writes(specs[i].access)) {
        note_write(task, ranges[i]);
      }
    }
    close_row();
  }

  void collect(uint32_t task, const BufferRange& range, Access access) {
    const auto add = [&](uint32_t other) { found_.push_back(other); };
    for_each_history(range, [&](History& part) {
      if (part.writer != kNone) {
        add(part.writer);
      }
      if (writes(access)) {
        readers_.visit_once(part.readers, task, add);
      }
    });
  }

  void note_write(uint32_t task, const BufferRange& range) {
    const History written{task, kNone};
    if (is_whole(range)) {
      whole_[range.buffer.index()] = written;
      if (std::vector<Part>* parts = parts_of(range.buffer)) {
        parts->assign(1, {0, written});
      }
      return;
    }
    if (range.begin >= range.end) {
      return;
    }
    std::vector<Part>& parts = split(range);
    const size_t first = part_at(parts, range.begin);
    const size_t last =
        range.end == num_elems(range.buffer) ? parts.size() : part_at(parts, range.end);
    parts[first].history = written;
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(first) + 1,
                parts.begin() + static_cast<ptrdiff_t>(last));
  }

  /// Calls `visit(History&)` for the parts that cover exactly this range. Splits parts at its ends.
  template <class Visit>
  void for_each_history(const BufferRange& range, Visit&& visit) {
    if (is_whole(range) && parts_of(range.buffer) == nullptr) {
      visit(whole_[range.buffer.index()]);
      return;
    }
    if (range.begin >= range.end) {
      return;
    }
    std::vector<Part>& parts = split(range);
    for (size_t i = part_at(parts, range.begin); i < parts.size() && parts[i].begin < range.end;
         ++i) {
      visit(parts[i].history);
    }
  }

  /// Returns the parts of the buffer after splitting them at both ends of the range.
  std::vector<Part>& split(const BufferRange& range) {
    if (split_index_[range.buffer.index()] == kNone) {
      split_index_[range.buffer.index()] = static_cast<uint32_t>(split_.size());
      split_.push_back({{0, whole_[range.buffer.index()]}});
    }
    std::vector<Part>& parts = *parts_of(range.buffer);
    cut(parts, range.begin);
    if (range.end < num_elems(range.buffer)) {
      cut(parts, range.end);
    }
    return parts;
  }

  static void cut(std::vector<Part>& parts, int64_t at) {
    const size_t index = part_at(parts, at);
    if (parts[index].begin != at) {
      parts.insert(parts.begin() + static_cast<ptrdiff_t>(index) + 1, {at, parts[index].history});
    }
  }

  /// Index of the part that contains this element.
  static size_t part_at(const std::vector<Part>& parts, int64_t element) {
    const auto after = std::ranges::upper_bound(parts, element, {}, &Part::begin);
    return static_cast<size_t>(after - parts.begin()) - 1;
  }

  std::vector<Part>* parts_of(BufferId buffer) {
    const uint32_t index = split_index_[buffer.index()];
    return index == kNone ? nullptr : &split_[index];
  }

  bool is_whole(const BufferRange& range) const {
    return range.begin == 0 && range.end == num_elems(range.buffer) && range.end > 0;
  }

  int64_t num_elems(BufferId buffer) const { return num_elems_[buffer.index()]; }

  void close_row() {
    std::ranges::sort(found_);
    // Not std::ranges::unique: clang 14 cannot compile the subrange that it returns.
    found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
    for (const uint32_t predecessor : found_) {
      graph_.predecessors.emplace_back(predecessor);
    }
    graph_.row_begin.push_back(static_cast<uint32_t>(graph_.predecessors.size()));
  }

  const Program& program_;
  DependencyGraph graph_;
  std::vector<int64_t> num_elems_;     // by buffer: close together, since each operand is looked up
  std::vector<History> whole_;         // by buffer: its history while it has only one part
  std::vector<uint32_t> split_index_;  // by buffer: its parts in `split_`, or kNone
  std::vector<std::vector<Part>> split_;
  ReaderPool readers_;
  std::vector<uint32_t> found_;
};

}  // namespace

DependencyGraph build_dependencies(const Program& program) {
  return DependencyBuilder(program).run();
}

}  // namespace braid
