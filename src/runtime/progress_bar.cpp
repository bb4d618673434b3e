#include "runtime/progress_bar.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "base/text.h"

namespace braid {
namespace {

constexpr int64_t kMinRedrawNs = 100'000'000;
constexpr int kMaxBarColumns = 40;
constexpr int kMinBarColumns = 8;
constexpr std::string_view kEraseToEnd = "\x1b[K";  // of the line: ECMA-48, EL
constexpr std::string_view kEraseLine = "\r\x1b[K";

struct Field {
  std::string text;
  int importance;  ///< the least important field is dropped first if the line is too long
};

/// Also false for NaN.
bool is_known(double value) {
  return value >= 0;
}

double done_fraction(const ProgressState& state) {
  const double num_steps = static_cast<double>(std::max<int64_t>(state.num_steps, 1));
  return std::clamp(static_cast<double>(state.step) / num_steps, 0.0, 1.0);
}

std::vector<Field> fields_of(const ProgressState& state) {
  std::vector<Field> fields;
  fields.push_back({fmt::format("{}/{}", state.step, state.num_steps), 4});
  if (is_known(state.loss)) {
    fields.push_back({fmt::format("loss {:.3f}", state.loss), 3});
  }
  if (is_known(state.valid_loss)) {
    fields.push_back({fmt::format("valid {:.3f}", state.valid_loss), 1});
  }
  if (is_known(state.tokens_per_s)) {
    const auto tokens_per_s = static_cast<int64_t>(std::min(state.tokens_per_s, 1e18));
    fields.push_back({format_count(tokens_per_s) + " tokens/s", 0});
  }
  if (is_known(state.seconds_left)) {
    fields.push_back({"ETA " + format_duration(state.seconds_left), 2});
  }
  return fields;
}

/// Joins the fields, each after two blanks; fields are ASCII, so a byte is a column.
std::string join_fields(const std::vector<Field>& fields) {
  std::string text;
  for (const Field& field : fields) {
    text += "  " + field.text;
  }
  return text;
}

void drop_least_important(std::vector<Field>& fields) {
  fields.erase(std::min_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) {
    return a.importance < b.importance;
  }));
}

/// A bar with half-column resolution: heavy for the finished part, light for the rest.
std::string draw_bar(double fraction, int columns) {
  const int halves = static_cast<int>(std::floor(fraction * 2 * columns));
  std::string bar;
  for (int column = 0; column < columns; ++column) {
    const int filled = halves - 2 * column;
    bar += filled >= 2 ? "━" : filled == 1 ? "╸" : "─";
  }
  return bar;
}

}  // namespace

std::string progress_line(const ProgressState& state, int columns) {
  const double fraction = done_fraction(state);
  const std::string percent = fmt::format("{:3d}%", static_cast<int>(std::floor(fraction * 100)));
  std::vector<Field> fields = fields_of(state);
  const auto room = [&] {
    return columns - static_cast<int>(percent.size() + 1 + join_fields(fields).size());
  };
  while (!fields.empty() && room() < kMinBarColumns) {
    drop_least_important(fields);
  }
  if (room() < 1) {
    return percent.substr(0, static_cast<size_t>(std::max(columns, 0)));
  }
  return percent + " " + draw_bar(fraction, std::min(room(), kMaxBarColumns)) + join_fields(fields);
}

int terminal_columns() {
  constexpr int kUsualColumns = 80;
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsualColumns;
}

void ProgressBar::update(const ProgressState& state) {
  state_ = state;
  // The absolute value, so that setting the clock back does not stop the bar.
  const int64_t since_last_ns = std::abs(options_.now_ns() - last_draw_ns_);
  if (!drawn_once_ || since_last_ns >= kMinRedrawNs || state.step == state.num_steps) {
    draw();
  }
}

void ProgressBar::draw() {
  // One column stays free: writing to the last one makes some terminals wrap. Erasing after the
  // text instead of before avoids flicker.
  options_.print(fmt::format("\r{}{}", progress_line(state_, options_.columns() - 1), kEraseToEnd));
  last_draw_ns_ = options_.now_ns();
  drawn_once_ = true;
  visible_ = true;
}

void ProgressBar::print_above(std::string_view text) {
  const bool was_visible = visible_;
  erase();
  options_.print(text);
  if (was_visible) {
    draw();
  }
}

void ProgressBar::erase() {
  if (visible_) {
    options_.print(kEraseLine);
    visible_ = false;
  }
}

}  // namespace braid
