#include "parallel/schedule_table.h"

#include <algorithm>
#include <numeric>

#include "base/errors.h"

namespace braid {
namespace {

using Slots = std::vector<std::vector<JobSlot>>;

class TableWriter {
 public:
  TableWriter(const Slots& slots, const ScheduleTableOptions& options) : slots_(slots) {
    measure();
    choose_columns(options);
  }

  std::string write() const {
    std::string table;
    for (size_t rank = 0; rank < slots_.size(); ++rank) {
      table += line(rank);
    }
    return table;
  }

 private:
  static constexpr size_t kMinWidth = 40;

  std::string label(const Job& job) const {
    return has_stages_
               ? fmt::format("{}{}.{}", job_letter(job.kind), job.microbatch, job.virtual_stage)
               : fmt::format("{}{}", job_letter(job.kind), job.microbatch);
  }

  void measure() {
    for (const std::vector<JobSlot>& rank : slots_) {
      for (const JobSlot& slot : rank) {
        has_stages_ |= slot.job.virtual_stage > 0;
        unit_ = std::gcd(unit_, std::gcd(slot.begin, slot.end));
      }
    }
    for (const std::vector<JobSlot>& rank : slots_) {
      for (const JobSlot& slot : rank) {
        cell_width_ = std::max(cell_width_, label(slot.job).size() + 1);
        num_columns_ = std::max(num_columns_, column(slot.end));
      }
    }
    name_width_ = fmt::format("rank {}  ", slots_.size()).size();
  }

  int64_t column(int64_t time) const { return unit_ == 0 ? 0 : time / unit_; }

  /// Columns [0, head_) and [tail_, end) are shown.
  void choose_columns(const ScheduleTableOptions& options) {
    head_ = num_columns_;
    tail_ = num_columns_;
    const size_t width = std::max(static_cast<size_t>(options.max_width), kMinWidth);
    const auto fitting = static_cast<int64_t>((width - name_width_) / cell_width_);
    if (options.max_width != 0 && fitting < num_columns_) {
      const int64_t shown = std::max<int64_t>(fitting - 1, 2);  // one column is used by "..."
      head_ = (shown + 1) / 2;
      tail_ = num_columns_ - shown / 2;
    }
  }

  /// Writes a cell, unless its column is omitted or does not exist because the job takes no time.
  void put(std::string& line, int64_t at, const std::string& text) const {
    if ((at >= head_ && at < tail_) || at >= num_columns_) {
      return;
    }
    const int64_t place = at < head_ ? at : head_ + (tail_ > head_ ? 1 : 0) + at - tail_;
    line.replace(name_width_ + static_cast<size_t>(place) * cell_width_, text.size(), text);
  }

  std::string line(size_t rank) const {
    const bool has_gap = tail_ > head_;
    const int64_t num_cells = head_ + (has_gap ? 1 : 0) + num_columns_ - tail_;
    std::string line = fmt::format("{:<{}}", fmt::format("rank {}", rank), name_width_);
    line.append(static_cast<size_t>(num_cells) * cell_width_, ' ');
    for (int64_t at = 0; at < head_; ++at) {
      put(line, at, ".");
    }
    for (int64_t at = tail_; at < num_columns_; ++at) {
      put(line, at, ".");
    }
    if (has_gap) {
      line.replace(name_width_ + static_cast<size_t>(head_) * cell_width_, 2, "..");
    }
    for (const JobSlot& slot : slots_[rank]) {
      put_job(line, slot);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    return line + "\n";
  }

  void put_job(std::string& line, const JobSlot& slot) const {
    const int64_t begin = column(slot.begin);
    const int64_t end = column(slot.end);
    for (int64_t at = begin + 1; at < std::min(end, head_); ++at) {
      put(line, at, "-");
    }
    for (int64_t at = std::max(begin + 1, tail_); at < end; ++at) {
      put(line, at, "-");
    }
    put(line, begin, label(slot.job));
  }

  const Slots& slots_;
  bool has_stages_ = false;
  int64_t unit_ = 0;
  int64_t num_columns_ = 0;
  size_t cell_width_ = 3;
  size_t name_width_ = 0;
  int64_t head_ = 0;
  int64_t tail_ = 0;
};

}  // namespace

std::string schedule_table(const Slots& slots, const ScheduleTableOptions& options) {
  return TableWriter(slots, options).write();
}

}  // namespace braid
