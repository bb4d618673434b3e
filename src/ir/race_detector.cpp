#include "ir/race_detector.h"

#include <algorithm>

#include "base/errors.h"

namespace braid {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

}  // namespace

HappensBefore::HappensBefore(const Program& program, Ordering ordering)
    : program_(program),
      is_serial_(ordering == Ordering::kProgramOrder),
      num_streams_(program.streams.size()),
      stream_clocks_(num_streams_ * num_streams_),
      event_clocks_(program.num_events * num_streams_),
      position_(program.tasks.size()) {}

void HappensBefore::start(TaskId task) {
  const Task& it = program_.tasks[task.index()];
  uint32_t* clock = &stream_clocks_[it.stream.index() * num_streams_];
  for (const EventId event : program_.waits_of(it)) {
    const uint32_t* recorded = &event_clocks_[event.index() * num_streams_];
    std::transform(recorded, recorded + num_streams_, clock, clock,
                   [](uint32_t a, uint32_t b) { return std::max(a, b); });
  }
  position_[task.index()] = ++clock[it.stream.index()];
  current_ = clock;
}

void HappensBefore::finish(TaskId task) {
  const Task& it = program_.tasks[task.index()];
  if (it.record.valid()) {
    std::copy_n(current_, num_streams_, &event_clocks_[it.record.index() * num_streams_]);
  }
}

RaceDetector::RaceDetector(const Program& program, Ordering ordering, Report report)
    : program_(program), report_(std::move(report)), order_(program, ordering) {
  cut_buffers();
}

void RaceDetector::run() {
  for (size_t i = 0; i < program_.tasks.size(); ++i) {
    if (!check_task(TaskId(i))) {
      return;
    }
  }
}

void RaceDetector::cut_buffers() {
  const size_t num_buffers = program_.buffers.size();
  const auto inner_ends = [&](auto&& visit) {
    for (const BufferRange& range : program_.operands) {
      const int64_t num_elems = program_.buffers[range.buffer.index()].num_elems();
      for (const int64_t end : {range.begin, range.end}) {
        if (end > 0 && end < num_elems) {
          visit(range.buffer.index(), end);
        }
      }
    }
  };
  // Counting sort by buffer, then a sort by position within each buffer.
  std::vector<size_t> row_begin(num_buffers + 1);
  inner_ends([&](size_t buffer, int64_t) { ++row_begin[buffer + 1]; });
  for (size_t i = 0; i < num_buffers; ++i) {
    row_begin[i + 1] += row_begin[i];
  }
  std::vector<int64_t> ends(row_begin.back());
  std::vector<size_t> next(row_begin.begin(), row_begin.end() - 1);
  inner_ends([&](size_t buffer, int64_t end) { ends[next[buffer]++] = end; });

  cells_begin_.reserve(num_buffers + 1);
  for (size_t i = 0; i < num_buffers; ++i) {
    cells_begin_.push_back(cell_starts_.size());
    cell_starts_.push_back(0);
    const auto begin = ends.begin() + static_cast<ptrdiff_t>(row_begin[i]);
    const auto end = ends.begin() + static_cast<ptrdiff_t>(row_begin[i + 1]);
    std::sort(begin, end);
    cell_starts_.insert(cell_starts_.end(), begin, std::unique(begin, end));
  }
  cells_begin_.push_back(cell_starts_.size());
  cells_.assign(cell_starts_.size(), {kNone, kNone});
}

RaceDetector::CellSpan RaceDetector::cells_of(const BufferRange& range) const {
  if (range.begin >= range.end) {
    return {};
  }
  const size_t first = cells_begin_[range.buffer.index()];
  const size_t last = cells_begin_[range.buffer.index() + 1];
  if (last - first == 1) {
    return {first, last};
  }
  const auto starts = cell_starts_.begin();
  const auto index_of = [&](int64_t at) {
    return static_cast<size_t>(std::lower_bound(starts + static_cast<ptrdiff_t>(first),
                                                starts + static_cast<ptrdiff_t>(last), at) -
                               starts);
  };
  return {index_of(range.begin), index_of(range.end)};
}

int64_t RaceDetector::cell_end(BufferId buffer, size_t cell) const {
  return cell + 1 < cells_begin_[buffer.index() + 1] ? cell_starts_[cell + 1]
                                                     : program_.buffers[buffer.index()].num_elems();
}

bool RaceDetector::check_task(TaskId task) {
  const Task& it = program_.tasks[task.index()];
  const auto ranges = program_.operands_of(it);
  const auto& specs = program_.spec(it).operands;
  order_.start(task);
  // Check all reads before any write: an in-place task reads the previous contents.
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Lifetime lifetime = program_.buffers[ranges[i].buffer.index()].lifetime;
    if (reads(specs[i].access) && !check_cells(task, ranges[i], [&](Cell& cell) {
          return note_read(task, specs[i].access, lifetime, cell);
        })) {
      return false;
    }
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (writes(specs[i].access) &&
        !check_cells(task, ranges[i], [&](Cell& cell) { return note_write(task, cell); })) {
      return false;
    }
  }
  order_.finish(task);
  return true;
}

template <class FaultOf>
bool RaceDetector::check_cells(TaskId task, const BufferRange& range, FaultOf&& fault_of) {
  const CellSpan cells = cells_of(range);
  Fault fault;
  int64_t begin = 0;
  int64_t end = 0;
  const auto report = [&] {
    return fault.kind == FaultKind::kNone ||
           report_(fmt::format("buffer {} [{}:{}]: {}", program_.buffers[range.buffer.index()].name,
                               begin, end, message(task, fault)));
  };
  for (size_t i = cells.begin; i < cells.end; ++i) {
    const Fault next = fault_of(cells_[i]);
    if (next != fault) {
      if (!report()) {
        return false;
      }
      fault = next;
      begin = cell_starts_[i];
    }
    if (fault.kind != FaultKind::kNone) {
      end = cell_end(range.buffer, i);
    }
  }
  return report();
}

RaceDetector::Fault RaceDetector::note_read(TaskId task, Access access, Lifetime lifetime,
                                            Cell& cell) {
  const bool is_plain_read = access == Access::kRead;
  if (is_plain_read) {
    add_reader(cell, task);
  }
  if (cell.writer == kNone) {
    return {lifetime == Lifetime::kStep ? FaultKind::kUnwritten : FaultKind::kNone, kNone};
  }
  // The write of a kReadWrite operand reports the same race.
  if (is_plain_read && !order_.is_ordered(cell.writer)) {
    return {FaultKind::kAfterWrite, cell.writer};
  }
  return {};
}

RaceDetector::Fault RaceDetector::note_write(TaskId task, Cell& cell) {
  const uint32_t writer = cell.writer;
  const uint32_t reader = unordered_reader(cell);
  drop_readers(cell);
  cell.writer = task.value;
  if (writer == task.value) {
    return {FaultKind::kWrittenTwice, kNone};
  }
  if (writer != kNone && !order_.is_ordered(writer)) {
    return {FaultKind::kAfterWrite, writer};
  }
  if (reader != kNone) {
    return {FaultKind::kAfterRead, reader};
  }
  return {};
}

void RaceDetector::add_reader(Cell& cell, TaskId task) {
  // Drop readers that are ordered before this one. A task ordered after this read is also ordered
  // after them.
  uint32_t* link = &cell.readers;
  while (*link != kNone) {
    ReaderNode& node = reader_nodes_[*link];
    if (!order_.is_ordered(node.task)) {
      link = &node.next;
      continue;
    }
    const uint32_t freed = *link;
    *link = node.next;
    node.next = free_nodes_;
    free_nodes_ = freed;
  }
  if (free_nodes_ == kNone) {
    free_nodes_ = static_cast<uint32_t>(reader_nodes_.size());
    reader_nodes_.push_back({kNone, kNone});
  }
  const uint32_t added = free_nodes_;
  free_nodes_ = reader_nodes_[added].next;
  reader_nodes_[added] = {task.value, cell.readers};
  cell.readers = added;
}

uint32_t RaceDetector::unordered_reader(const Cell& cell) const {
  for (uint32_t node = cell.readers; node != kNone; node = reader_nodes_[node].next) {
    if (!order_.is_ordered(reader_nodes_[node].task)) {
      return reader_nodes_[node].task;
    }
  }
  return kNone;
}

void RaceDetector::drop_readers(Cell& cell) {
  while (cell.readers != kNone) {
    ReaderNode& node = reader_nodes_[cell.readers];
    const uint32_t next = node.next;
    node.next = free_nodes_;
    free_nodes_ = cell.readers;
    cell.readers = next;
  }
}

std::string RaceDetector::message(TaskId task, const Fault& fault) const {
  const std::string name = name_task(task.value);
  if (fault.kind == FaultKind::kUnwritten) {
    return fmt::format("nothing writes it before {} reads it", name);
  }
  if (fault.kind == FaultKind::kWrittenTwice) {
    return fmt::format("two operands of {} write it", name);
  }
  return fmt::format("race: {} is not ordered after {}, which {} it", name, name_task(fault.other),
                     fault.kind == FaultKind::kAfterWrite ? "writes" : "reads");
}

std::string RaceDetector::name_task(uint32_t task) const {
  const Task& it = program_.tasks[task];
  return fmt::format("task {} ({}) on stream {}", task, describe_task(program_, TaskId(task)),
                     program_.streams[it.stream.index()].name);
}

}  // namespace braid
