#include "report/schedule_svg.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace braid {
namespace {

using Slots = std::vector<std::vector<JobSlot>>;

// Sizes in pixels.
constexpr double kLeft = 64;  // for names of ranks
constexpr double kTop = 8;
constexpr double kRowHeight = 24;
constexpr double kBoxHeight = 20;
constexpr double kJobWidth = 26;  // for a job of mean duration
constexpr double kMaxWidth = 1600;
constexpr double kGap = 40;  // in place of the part left out
constexpr double kDigitWidth = 7;
constexpr double kLegendHeight = 40;
constexpr size_t kMaxRows = 33;

struct Kind {
  std::string_view css_class;
  std::string_view name;
};
constexpr std::array<Kind, 4> kKinds = {
    {{"f", "forward"}, {"b", "backward (dgrad and wgrad)"}, {"d", "dgrad"}, {"w", "wgrad"}}};

constexpr std::string_view kStyle =
    "<style>"
    ".schedule{font:11px system-ui,sans-serif;fill:var(--text,#1c2128)}"
    ".schedule .f{fill:var(--phase-forward,#3f7fdc)}"
    ".schedule .b{fill:var(--phase-backward,#147d92)}"
    ".schedule .d{fill:var(--phase-dgrad,#1fa391)}"
    ".schedule .w{fill:var(--phase-wgrad,#86a83a)}"
    ".schedule .track{fill:var(--track,#eceff3)}"
    ".schedule .muted{fill:var(--muted,#636c76)}"
    ".schedule .n{fill:#fff;text-anchor:middle;pointer-events:none}"
    ".schedule .pale{fill:var(--text,#1c2128)}"
    "</style>";

/// Rows to show, and their positions in pixels.
class Picture {
 public:
  explicit Picture(const Slots& slots) : slots_(slots) {
    measure();
    choose_rows();
    choose_times();
  }

  std::string draw() {
    const double height = kTop + static_cast<double>(num_rows()) * kRowHeight + kLegendHeight;
    svg_ = fmt::format(
        "<svg class=\"schedule\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" "
        "aria-label=\"Jobs of {} pipeline ranks\" width=\"{:.0f}\" height=\"{:.0f}\" "
        "viewBox=\"0 0 {:.0f} {:.0f}\">{}",
        slots_.size(), width(), height, width(), height, kStyle);
    for (size_t row = 0; row < num_rows(); ++row) {
      draw_row(row);
    }
    draw_gap_note();
    draw_legend(kTop + static_cast<double>(num_rows()) * kRowHeight + 28);
    return svg_ + "</svg>";
  }

 private:
  void measure() {
    int64_t busy = 0;
    size_t num_jobs = 0;
    for (const std::vector<JobSlot>& rank : slots_) {
      num_jobs += rank.size();
      for (const JobSlot& slot : rank) {
        busy += slot.end - slot.begin;
        end_ = std::max(end_, slot.end);
        has_kind_[static_cast<size_t>(slot.job.kind)] = true;
        num_stages_ = std::max(num_stages_, slot.job.virtual_stage + 1);
      }
    }
    scale_ =
        busy == 0 ? 1.0 : kJobWidth * static_cast<double>(num_jobs) / static_cast<double>(busy);
  }

  void choose_rows() {
    const size_t num_ranks = slots_.size();
    const size_t head = num_ranks <= kMaxRows ? num_ranks : kMaxRows / 2;
    for (size_t rank = 0; rank < head; ++rank) {
      rows_.push_back(rank);
    }
    has_row_gap_ = head < num_ranks;
    for (size_t rank = has_row_gap_ ? num_ranks - head : num_ranks; rank < num_ranks; ++rank) {
      rows_.push_back(rank);
    }
  }

  /// Shows the times up to head_ and from tail_ on.
  void choose_times() {
    head_ = end_;
    tail_ = end_;
    if (static_cast<double>(end_) * scale_ > kMaxWidth) {
      const auto half = static_cast<int64_t>((kMaxWidth - kGap) / 2 / scale_);
      head_ = half;
      tail_ = end_ - half;
    }
  }

  bool has_time_gap() const { return head_ < tail_; }
  size_t num_rows() const { return rows_.size() + (has_row_gap_ ? 1 : 0); }
  double width() const { return std::max(kLeft + right_end() + 8, 420.0); }  // fits the legend

  // Pixels right of kLeft.
  double head_x(int64_t time) const {
    return static_cast<double>(std::clamp(time, int64_t{0}, head_)) * scale_;
  }
  double tail_x(int64_t time) const {
    return head_x(head_) + kGap + static_cast<double>(std::max(time, tail_) - tail_) * scale_;
  }
  double right_end() const { return has_time_gap() ? tail_x(end_) : head_x(end_); }

  void text(double x, double y, std::string_view attributes, std::string_view content) {
    svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>", x, y, attributes, content);
  }

  void rectangle(double x, double y, double rect_width, std::string_view attributes,
                 std::string_view content = "") {
    svg_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" {}", x, y,
                        rect_width, kBoxHeight, attributes);
    svg_ += content.empty() ? "/>" : fmt::format(">{}</rect>", content);
  }

  void draw_row(size_t row) {
    const double y = kTop + static_cast<double>(row) * kRowHeight;
    size_t index = row;
    if (has_row_gap_ && row >= rows_.size() / 2) {
      if (row == rows_.size() / 2) {
        text(0, y + 14, " class=\"muted\"",
             fmt::format("... {} more ranks", slots_.size() - rows_.size()));
        return;
      }
      --index;
    }
    const size_t rank = rows_[index];
    text(0, y + 14, "", fmt::format("rank {}", rank));
    draw_track(y);
    for (const JobSlot& slot : slots_[rank]) {
      draw_job(slot, y);
    }
  }

  void draw_track(double y) {
    if (head_ > 0) {
      rectangle(kLeft, y, head_x(head_), "class=\"track\"");
    }
    if (has_time_gap()) {
      rectangle(kLeft + tail_x(tail_), y, tail_x(end_) - tail_x(tail_), "class=\"track\"");
    }
  }

  /// Boxes are clipped at the part left out.
  void draw_job(const JobSlot& slot, double y) {
    if (slot.end <= slot.begin || (slot.begin >= head_ && slot.end <= tail_)) {
      return;
    }
    const bool in_head = slot.begin < head_;
    const double from = in_head ? head_x(slot.begin) : tail_x(slot.begin);
    const double to = in_head ? head_x(slot.end) : tail_x(slot.end);
    const double box = std::max(to - from - 1, 0.5);  // one pixel between boxes
    const Kind& kind = kKinds[static_cast<size_t>(slot.job.kind)];
    const std::string place =
        num_stages_ > 1 ? fmt::format(", virtual stage {}", slot.job.virtual_stage) : "";
    rectangle(kLeft + from, y, box,
              fmt::format("rx=\"2\" class=\"{}\"{}", kind.css_class, shade(slot.job.virtual_stage)),
              fmt::format("<title>{} of microbatch {}{}: {} to {}</title>", kind.name,
                          slot.job.microbatch, place, slot.begin, slot.end));
    const std::string number = fmt::format("{}", slot.job.microbatch);
    if (box >= kDigitWidth * static_cast<double>(number.size()) + 2) {
      text(kLeft + from + box / 2, y + 14,
           paleness(slot.job.virtual_stage) > 0.15 ? " class=\"n pale\"" : " class=\"n\"", number);
    }
  }

  /// The paleness of a virtual stage: 0 to 0.4.
  double paleness(int32_t virtual_stage) const {
    return virtual_stage == 0 ? 0.0 : 0.4 * virtual_stage / (num_stages_ - 1);
  }

  std::string shade(int32_t virtual_stage) const {
    return virtual_stage == 0
               ? ""
               : fmt::format(" fill-opacity=\"{:.2f}\"", 1 - paleness(virtual_stage));
  }

  void draw_gap_note() {
    if (has_time_gap() && !rows_.empty()) {
      const double middle = kLeft + head_x(head_) + kGap / 2;
      const double bottom = kTop + static_cast<double>(num_rows()) * kRowHeight;
      text(middle, bottom + 8, " class=\"muted\" text-anchor=\"middle\"",
           fmt::format("{:.0f}% of the time left out",
                       100.0 * static_cast<double>(tail_ - head_) / static_cast<double>(end_)));
    }
  }

  void draw_legend(double y) {
    double x = kLeft;
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
      if (has_kind_[kind]) {
        svg_ += fmt::format(
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" rx=\"2\" class=\"{}\"/>", x,
            y - 9, kKinds[kind].css_class);
        text(x + 15, y, " class=\"muted\"", kKinds[kind].name);
        x += 30 + 6.2 * static_cast<double>(kKinds[kind].name.size());
      }
    }
    if (num_stages_ > 1) {
      text(x, y, " class=\"muted\"", "paler: later virtual stages");
    } else if (x == kLeft) {
      text(x, y, " class=\"muted\"", "no jobs");
    }
  }

  const Slots& slots_;
  std::string svg_;
  std::vector<size_t> rows_;  // ranks
  bool has_row_gap_ = false;
  std::array<bool, 4> has_kind_ = {};
  int32_t num_stages_ = 0;
  int64_t end_ = 0;
  double scale_ = 1;  // pixels per unit of time
  int64_t head_ = 0;
  int64_t tail_ = 0;
};

}  // namespace

std::string schedule_svg(const Slots& slots) {
  return Picture(slots).draw();
}

}  // namespace braid
