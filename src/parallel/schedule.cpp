#include "parallel/schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "parallel/schedule_orders.h"

namespace braid {
namespace {

constexpr std::array<char, 4> kLetters = {'F', 'B', 'D', 'W'};

bool is_v_shape(ScheduleKind kind) {
  return kind == ScheduleKind::kZbV || kind == ScheduleKind::kDualpipeV;
}

/// Order of zb-h1 or zb-v before wgrads are inserted.
Schedule unsplit_order(const ScheduleOptions& options, int rank) {
  if (options.kind == ScheduleKind::kZbV) {
    return zb_v_order(options, rank);
  }
  Schedule order = one_forward_one_backward_order(options, rank);
  for (Job& job : order) {
    job.kind = job.kind == JobKind::kBackward ? JobKind::kDgrad : job.kind;
  }
  return order;
}

/// For zb-h1 and zb-v: every rank may use as much memory as the first rank of 1f1b with the same
/// pairs.
std::vector<Schedule> make_zero_bubble(const ScheduleOptions& options) {
  std::vector<Schedule> orders;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    orders.push_back(unsplit_order(options, rank));
  }
  const int64_t held = options.pairs == JobPairs::kNone ? 1 : 2;
  return fill_with_wgrads(options, orders,
                          held * int64_t{options.num_ranks} * options.virtual_stages);
}

bool depends_on_all_ranks(ScheduleKind kind) {
  return kind == ScheduleKind::kZbH1 || kind == ScheduleKind::kZbV;
}

Schedule make_closed_form(const ScheduleOptions& options, int rank) {
  switch (options.kind) {
    case ScheduleKind::kGpipe:
      return gpipe_order(options);
    case ScheduleKind::kOneForwardOneBackward:
      return one_forward_one_backward_order(options, rank);
    case ScheduleKind::kInterleaved:
      return interleaved_order(options, rank);
    case ScheduleKind::kDualpipeV:
      return dualpipe_v_order(options, rank);
    case ScheduleKind::kZbH1:
    case ScheduleKind::kZbV:
      break;
  }
  throw_internal_error("this schedule has no closed form");
}

int32_t parse_number(std::string_view word, std::string_view digits) {
  int32_t value = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0) {
    throw_data_error(
        "job {}: expected a letter of F, B, D, W, a microbatch, \".\" and a virtual "
        "stage, as in F0.0",
        quote(word, 40));
  }
  return value;
}

Job parse_job(std::string_view word) {
  const auto* letter = std::ranges::find(kLetters, word.front());
  const size_t dot = word.find('.');
  const bool is_sound = letter != kLetters.end() && dot != std::string_view::npos;
  return {.kind = static_cast<JobKind>(letter - kLetters.begin()),
          .microbatch = parse_number(word, is_sound ? word.substr(1, dot - 1) : ""),
          .virtual_stage = parse_number(word, is_sound ? word.substr(dot + 1) : "")};
}

}  // namespace

std::string_view schedule_name(ScheduleKind kind) {
  return kScheduleNames[static_cast<size_t>(kind)];
}

ScheduleKind schedule_kind(std::string_view name) {
  const auto* found = std::ranges::find(kScheduleNames, name);
  if (found == kScheduleNames.end()) {
    throw_config_error("parallel.schedule = {}: expected one of {}{}", quote(name, 40),
                       join(kScheduleNames, ", "), did_you_mean(name, kScheduleNames));
  }
  return static_cast<ScheduleKind>(found - kScheduleNames.begin());
}

std::vector<Schedule> make_schedules(const ScheduleOptions& options) {
  check_schedule(options);
  if (depends_on_all_ranks(options.kind)) {
    return make_zero_bubble(options);
  }
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    schedules.push_back(make_closed_form(options, rank));
  }
  return schedules;
}

Schedule make_schedule(const ScheduleOptions& options, int rank) {
  check(rank >= 0 && rank < options.num_ranks, "rank {} is not one of {} pipeline ranks", rank,
        options.num_ranks);
  check_schedule(options);
  return depends_on_all_ranks(options.kind)
             ? std::move(make_zero_bubble(options)[static_cast<size_t>(rank)])
             : make_closed_form(options, rank);
}

Schedule single_stage_schedule(int64_t num_microbatches) {
  check(num_microbatches >= 1, "a schedule needs a microbatch, got {}", num_microbatches);
  return one_forward_one_backward_order({.num_microbatches = num_microbatches}, 0);
}

bool splits_backward(ScheduleKind kind) {
  return kind == ScheduleKind::kZbH1 || is_v_shape(kind);
}

int stage_of(const ScheduleOptions& options, int rank, int virtual_stage) {
  check(rank >= 0 && rank < options.num_ranks && virtual_stage >= 0 &&
            virtual_stage < options.virtual_stages,
        "there is no virtual stage {} on rank {}: {} ranks of {}", virtual_stage, rank,
        options.num_ranks, options.virtual_stages);
  return is_v_shape(options.kind) && virtual_stage == 1 ? 2 * options.num_ranks - 1 - rank
                                                        : virtual_stage * options.num_ranks + rank;
}

StagePlace place_of(const ScheduleOptions& options, int stage) {
  check(stage >= 0 && stage < options.num_stages(), "stage {} is not one of {}", stage,
        options.num_stages());
  const int virtual_stage = stage / options.num_ranks;
  return {.rank = is_v_shape(options.kind) && virtual_stage == 1 ? 2 * options.num_ranks - 1 - stage
                                                                 : stage % options.num_ranks,
          .virtual_stage = virtual_stage};
}

char job_letter(JobKind kind) {
  return kLetters[static_cast<size_t>(kind)];
}

std::string to_string(const Schedule& schedule) {
  std::string text;
  for (const Job& job : schedule) {
    text += fmt::format("{}{}{}.{}", text.empty() ? "" : " ", job_letter(job.kind), job.microbatch,
                        job.virtual_stage);
  }
  return text;
}

Schedule parse_schedule(std::string_view text) {
  Schedule schedule;
  for (const std::string& word : split_text(text, ' ')) {
    if (!word.empty()) {
      schedule.push_back(parse_job(word));
    }
  }
  return schedule;
}

}  // namespace braid
