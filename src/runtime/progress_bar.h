#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace braid {

/// The fields of the bar besides the finished part. NaN or negative: unknown, left out.
struct ProgressState {
  int64_t step = 0;
  int64_t num_steps = 1;
  double loss = -1;
  double valid_loss = -1;
  double tokens_per_s = -1;
  double seconds_left = -1;
};

/// One line of at most `columns` characters, for example
///
///    37% ━━━━━━━━━╸──────────────── 370/1000  loss 3.214  valid 3.402  18.4K tokens/s  ETA 83.0 s
///
/// If it is too long, the bar shrinks first; then tokens/s, held-out loss and the other fields are
/// dropped, in this order.
std::string progress_line(const ProgressState& state, int columns);

/// Width of the terminal of standard output; 80 if it is unknown.
int terminal_columns();

struct ProgressBarOptions {
  std::function<void(std::string_view)> print;  ///< the terminal
  std::function<int()> columns;                 ///< current width of the terminal
  std::function<int64_t()> now_ns;              ///< any clock
};

/// Redraws a line in place, at most ten times a second. Not thread-safe.
class ProgressBar {
 public:
  explicit ProgressBar(ProgressBarOptions options) : options_(std::move(options)) {}

  /// Draws, unless the last drawing is less than 100 ms ago and this is not the last step.
  void update(const ProgressState& state);
  /// Prints a text that ends in "\n" above the bar.
  void print_above(std::string_view text);
  /// Removes the line from the terminal, until the next `update`.
  void erase();

 private:
  void draw();

  ProgressBarOptions options_;
  ProgressState state_;
  bool visible_ = false;
  bool drawn_once_ = false;
  int64_t last_draw_ns_ = 0;
};

}  // namespace braid
