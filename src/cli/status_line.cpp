#include "cli/status_line.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/text.h"

namespace braid {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kLeastDone = 1e-9;

}  // namespace

bool StatusLine::is_due() const {
  return console_.is_terminal() && seconds() >= next_s_;
}

void StatusLine::update(double done, std::string_view text) {
  if (!is_due()) {
    return;
  }
  const double now = seconds();
  next_s_ = now + kRedrawSeconds;
  visible_ = true;
  const double left = now * (1 - done) / std::max(done, kLeastDone);
  console_.print_or_redraw(
      fmt::format("\r{:3.0f}%  {}, {} left\x1b[K", 100 * done, text, format_duration(left)));
}

StatusLine::~StatusLine() {
  try {
    erase();
  } catch (const DataError&) {  // the terminal is lost, and with it the line
  }
}

void StatusLine::erase() {
  if (std::exchange(visible_, false)) {
    console_.print_or_redraw("\r\x1b[K");
  }
}

double StatusLine::seconds() const {
  return std::chrono::duration<double>(Clock::now() - begin_).count();
}

int64_t StatusLine::rate(int64_t count) const {
  constexpr double kLeastSeconds = 1e-3;
  return static_cast<int64_t>(static_cast<double>(count) / std::max(seconds(), kLeastSeconds));
}

}  // namespace braid
