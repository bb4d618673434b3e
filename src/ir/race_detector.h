#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/program.h"
#include "ir/verify.h"

namespace braid {

/// Happens-before over streams and events, by vector clocks: entry [s][q] says how many tasks of
/// stream q have finished for certain when the next task of stream s starts. Tasks are shown to it
/// in program order.
class HappensBefore {
 public:
  HappensBefore(const Program& program, Ordering ordering);

  /// Takes over what the task's stream and its waits know.
  void start(TaskId task);
  /// Makes what the task knows available to tasks that wait for its event.
  void finish(TaskId task);
  /// True if `earlier`, which was shown before, has finished when the task that started last starts
  /// (or is that task).
  bool is_ordered(uint32_t earlier) const {
    return is_serial_ || position_[earlier] <= current_[program_.tasks[earlier].stream.index()];
  }

 private:
  const Program& program_;
  bool is_serial_;
  size_t num_streams_;
  std::vector<uint32_t> stream_clocks_;  // [S, S]
  std::vector<uint32_t> event_clocks_;   // [E, S]
  std::vector<uint32_t> position_;       // by task: its number on its stream, from 1
  const uint32_t* current_ = nullptr;    // row of stream_clocks_
};

/// Finds races and reads of what was never written. Shadow memory: each buffer is cut beforehand at
/// all ends of ranges that occur in the program; each cell keeps its last writer and the reads
/// since that are not ordered before a later read (FastTrack's epochs and read sets, Flanagan and
/// Freund 2009).
class RaceDetector {
 public:
  /// `report` gets one line per fault and returns false to stop. The program's structure must be
  /// sound.
  using Report = std::function<bool(std::string message)>;
  RaceDetector(const Program& program, Ordering ordering, Report report);

  void run();

 private:
  struct Cell {
    uint32_t writer;
    uint32_t readers;  // list in reader_nodes_
  };
  struct ReaderNode {
    uint32_t task;
    uint32_t next;
  };
  enum class FaultKind : uint8_t { kNone, kUnwritten, kWrittenTwice, kAfterWrite, kAfterRead };
  struct Fault {
    FaultKind kind = FaultKind::kNone;
    uint32_t other = UINT32_MAX;  // the earlier task of a race
    friend bool operator==(const Fault&, const Fault&) = default;
  };
  struct CellSpan {
    size_t begin = 0;
    size_t end = 0;
  };

  void cut_buffers();
  CellSpan cells_of(const BufferRange& range) const;
  int64_t cell_end(BufferId buffer, size_t cell) const;

  bool check_task(TaskId task);
  Fault note_read(TaskId task, Access access, Lifetime lifetime, Cell& cell);
  Fault note_write(TaskId task, Cell& cell);
  void add_reader(Cell& cell, TaskId task);
  uint32_t unordered_reader(const Cell& cell) const;
  void drop_readers(Cell& cell);

  /// Calls `fault_of(cell)` for the cells of the range and reports what it returns, equal
  /// neighbours as one.
  template <class FaultOf>
  bool check_cells(TaskId task, const BufferRange& range, FaultOf&& fault_of);
  std::string message(TaskId task, const Fault& fault) const;
  std::string name_task(uint32_t task) const;

  const Program& program_;
  Report report_;
  HappensBefore order_;
  std::vector<size_t> cells_begin_;  // by buffer, and one more
  std::vector<int64_t> cell_starts_;
  std::vector<Cell> cells_;
  std::vector<ReaderNode> reader_nodes_;
  uint32_t free_nodes_ = UINT32_MAX;
};

}  // namespace braid
