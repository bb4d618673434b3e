#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/program.h"
#include "ir/verify.h"

namespace braid {

/// Computes happens-before over streams and events with vector clocks. Entry [s][q] is the number
/// of tasks of stream q that are guaranteed to have finished when the next task of stream s starts.
/// Tasks must be visited in program order.
class HappensBefore {
 public:
  HappensBefore(const Program& program, Ordering ordering);

  /// Merges the clocks of the events that the task waits for into the clock of its stream.
  void start(TaskId task);
  /// Stores the task's clock in the event that it records.
  void finish(TaskId task);
  /// True if the visited task `earlier` has finished when the most recently started task starts, or
  /// is that task.
  bool is_ordered(uint32_t earlier) const {
    return is_serial_ || position_[earlier] <= current_[program_.tasks[earlier].stream.index()];
  }

 private:
  const Program& program_;
  bool is_serial_;
  size_t num_streams_;
  std::vector<uint32_t> stream_clocks_;  // [S, S]
  std::vector<uint32_t> event_clocks_;   // [E, S]
  std::vector<uint32_t> position_;       // by task: its number on its stream, starting at 1
  const uint32_t* current_ = nullptr;    // row of stream_clocks_
};

/// Finds races and reads of elements that were never written. Uses shadow memory: each buffer is
/// split in advance at all ends of ranges in the program. Each cell keeps its last writer and the
/// later reads that are not ordered before another read (epochs and read sets of FastTrack,
/// Flanagan and Freund 2009).
class RaceDetector {
 public:
  /// `report` receives one line per fault and returns false to stop. Requires a structurally valid
  /// program.
  using Report = std::function<bool(std::string message)>;
  RaceDetector(const Program& program, Ordering ordering, Report report);

  void run();

 private:
  struct Cell {
    uint32_t writer;
    uint32_t readers;  // head of a list in reader_nodes_
  };
  struct ReaderNode {
    uint32_t task;
    uint32_t next;
  };
  enum class FaultKind : uint8_t { kNone, kUnwritten, kWrittenTwice, kAfterWrite, kAfterRead };
  struct Fault {
    FaultKind kind = FaultKind::kNone;
    uint32_t other = UINT32_MAX;  // the earlier task of the race
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

  /// Calls `fault_of(cell)` for each cell of the range and reports the faults. Adjacent equal
  /// faults are reported as one.
  template <class FaultOf>
  bool check_cells(TaskId task, const BufferRange& range, FaultOf&& fault_of);
  std::string message(TaskId task, const Fault& fault) const;
  std::string name_task(uint32_t task) const;

  const Program& program_;
  Report report_;
  HappensBefore order_;
  std::vector<size_t> cells_begin_;  // by buffer, plus one end entry
  std::vector<int64_t> cell_starts_;
  std::vector<Cell> cells_;
  std::vector<ReaderNode> reader_nodes_;
  uint32_t free_nodes_ = UINT32_MAX;
};

}  // namespace braid
