#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "cli/commands.h"

namespace braid {

/// A line on the terminal that is redrawn in place, at most ten times a second: how much is done, a
/// text, and the time left. Without a terminal it only keeps the time.
class StatusLine {
 public:
  explicit StatusLine(const Console& console) : console_(console) {}
  /// Erases the line, also for an exception, whose message then has a line of its own.
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  /// Whether `update` would draw now: ask before making a text for it.
  bool is_due() const;
  /// `done`: the finished part, 0 to 1.
  void update(double done, std::string_view text);
  void erase();

  double seconds() const;
  /// `count` per second so far.
  int64_t rate(int64_t count) const;

 private:
  using Clock = std::chrono::steady_clock;

  const Console& console_;
  Clock::time_point begin_ = Clock::now();
  double next_s_ = 0;
  bool visible_ = false;
};

}  // namespace braid
