#include "parallel/check_schedule.h"

#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "base/errors.h"

namespace braid {
namespace {

template <class... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) {
    throw_config_error(format, std::forward<Args>(args)...);
  }
}

int64_t group_size_of(const ScheduleOptions& options) {
  return options.group_size == 0 ? options.num_ranks : options.group_size;
}

/// A group must not need a microbatch that is still on its way around the ranks.
bool fits_groups(int64_t num_microbatches, int64_t num_ranks, int64_t group_size) {
  const int64_t rest = num_microbatches % group_size;
  return group_size >= num_ranks && group_size <= num_microbatches &&
         (rest == 0 || rest >= num_ranks);
}

/// "train.global_batch = 8: makes 4 microbatches per rank and step".
std::string made_microbatches(const ScheduleOptions& options, int64_t microbatch_sequences) {
  return fmt::format("train.global_batch = {}: makes {} microbatches per rank and step",
                     options.num_microbatches * microbatch_sequences, options.num_microbatches);
}

/// "the nearest are 4 and 8": global batches with valid numbers of microbatches around the given
/// one.
std::string nearest_batches(const ScheduleOptions& options, int64_t microbatch_sequences) {
  const int64_t group_size = group_size_of(options);
  const auto fits = [&](int64_t m) { return fits_groups(m, options.num_ranks, group_size); };
  int64_t below = options.num_microbatches - 1;
  while (below > 0 && !fits(below)) {
    --below;
  }
  int64_t above = options.num_microbatches + 1;
  while (!fits(above)) {
    ++above;
  }
  return below > 0 ? fmt::format("the nearest are {} and {}", below * microbatch_sequences,
                                 above * microbatch_sequences)
                   : fmt::format("the nearest is {}", above * microbatch_sequences);
}

/// Returns the valid group size nearest to the given one; nullopt if none is valid for so few
/// microbatches.
std::optional<int64_t> nearest_group_size(const ScheduleOptions& options) {
  const int64_t wanted = group_size_of(options);
  std::optional<int64_t> nearest;
  for (int64_t size = options.num_ranks; size <= options.num_microbatches; ++size) {
    const bool nearer = !nearest || std::abs(size - wanted) < std::abs(*nearest - wanted);
    if (nearer && fits_groups(options.num_microbatches, options.num_ranks, size)) {
      nearest = size;
    }
  }
  return nearest;
}

void check_sizes(const ScheduleOptions& options, int64_t microbatch_sequences) {
  require(options.num_ranks >= 1, "parallel.pipeline = {}: at least 1 is needed",
          options.num_ranks);
  require(options.virtual_stages >= 1, "parallel.virtual_stages = {}: at least 1 is needed",
          options.virtual_stages);
  require(options.num_microbatches >= 1 &&
              options.num_microbatches <= std::numeric_limits<int32_t>::max(),
          "{}; 1 to {} are possible", made_microbatches(options, microbatch_sequences),
          std::numeric_limits<int32_t>::max());
  require(options.group_size >= 0,
          "parallel.microbatch_group_size = {}: 0 (parallel.pipeline) or more is needed",
          options.group_size);
}

void check_virtual_stages(const ScheduleOptions& options) {
  const int given = options.virtual_stages;
  switch (options.kind) {
    case ScheduleKind::kGpipe:
    case ScheduleKind::kOneForwardOneBackward:
    case ScheduleKind::kZbH1:
      require(given == 1,
              "parallel.virtual_stages = {}: schedule \"{}\" has one virtual stage per rank; set "
              "parallel.virtual_stages = 1 or parallel.schedule = \"interleaved\"",
              given, schedule_name(options.kind));
      return;
    case ScheduleKind::kInterleaved:
      require(given >= 2,
              "parallel.virtual_stages = {}: schedule \"interleaved\" needs at least 2 virtual "
              "stages per rank; set parallel.virtual_stages = 2 or parallel.schedule = \"1f1b\"",
              given);
      return;
    case ScheduleKind::kZbV:
    case ScheduleKind::kDualpipeV:
      require(given == 2,
              "parallel.virtual_stages = {}: schedule \"{}\" has two virtual stages per rank; set "
              "parallel.virtual_stages = 2",
              given, schedule_name(options.kind));
  }
}

void check_interleaved(const ScheduleOptions& options, int64_t microbatch_sequences) {
  const int64_t ranks = options.num_ranks;
  const int64_t microbatches = options.num_microbatches;
  const int64_t group_size = group_size_of(options);
  require(microbatches >= ranks,
          "{}, but schedule \"interleaved\" needs at least parallel.pipeline = {}; the nearest is "
          "{}, or set parallel.schedule = \"1f1b\" and parallel.virtual_stages = 1",
          made_microbatches(options, microbatch_sequences), ranks, ranks * microbatch_sequences);
  const std::string nearest_size = fmt::format("{}", nearest_group_size(options).value_or(0));
  require(group_size >= ranks && group_size <= microbatches,
          "parallel.microbatch_group_size = {}: schedule \"interleaved\" needs parallel.pipeline = "
          "{} to {} (microbatches per rank and step); the nearest is {}",
          group_size, ranks, microbatches, nearest_size);
  require(fits_groups(microbatches, ranks, group_size),
          "{}, and with schedule \"interleaved\" and parallel.microbatch_group_size = {} the {} of "
          "the last group must be at least parallel.pipeline = {}; {}, or set "
          "parallel.microbatch_group_size = {}",
          made_microbatches(options, microbatch_sequences), group_size, microbatches % group_size,
          ranks, nearest_batches(options, microbatch_sequences), nearest_size);
}

constexpr std::string_view kOneStagePerRank =
    "parallel.schedule = \"1f1b\" and parallel.virtual_stages = 1";

int64_t least_of_dualpipe(const ScheduleOptions& options) {
  return 2 * int64_t{options.num_ranks};
}

void check_pairs(const ScheduleOptions& options) {
  if (options.pairs == JobPairs::kForwardBackward) {
    require(options.kind != ScheduleKind::kGpipe && options.kind != ScheduleKind::kZbV,
            "overlap.pair_forward_backward = \"forward_backward\": in schedule \"{}\" every "
            "backward waits for the forward beside it, so there are no pairs; set {}",
            schedule_name(options.kind),
            options.virtual_stages == 2 && options.num_microbatches >= least_of_dualpipe(options)
                ? "parallel.schedule = \"dualpipe-v\""
                : kOneStagePerRank);
  }
  if (options.pairs == JobPairs::kHalves) {
    require(options.num_ranks == 1 && options.kind == ScheduleKind::kOneForwardOneBackward,
            "overlap.pair_forward_backward = \"halves\": is for one pipeline rank with schedule "
            "\"1f1b\", but there are {} with \"{}\"; set overlap.pair_forward_backward = "
            "\"forward_backward\"",
            options.num_ranks, schedule_name(options.kind));
    check(options.num_microbatches % 2 == 0, "{} microbatches are no pairs of halves",
          options.num_microbatches);
  }
}

}  // namespace

void check_schedule(const ScheduleOptions& options) {
  check_schedule(options, 1);
}

void check_schedule(const ScheduleOptions& options, int64_t microbatch_sequences) {
  check_sizes(options, microbatch_sequences);
  check_virtual_stages(options);
  check_pairs(options);
  if (options.kind == ScheduleKind::kInterleaved) {
    check_interleaved(options, microbatch_sequences);
    return;
  }
  require(options.group_size == 0,
          "parallel.microbatch_group_size = {}: schedule \"{}\" has no groups; set "
          "parallel.microbatch_group_size = 0 or parallel.schedule = \"interleaved\"",
          options.group_size, schedule_name(options.kind));
  if (options.kind == ScheduleKind::kDualpipeV) {
    const int64_t least = least_of_dualpipe(options);
    const bool pairs = options.pairs == JobPairs::kForwardBackward;  // zb-v does not support pairs
    require(options.num_microbatches >= least,
            "{}, but schedule \"dualpipe-v\" needs at least 2 * parallel.pipeline = {}; the "
            "nearest is {}, or set {}",
            made_microbatches(options, microbatch_sequences), least, least * microbatch_sequences,
            pairs ? kOneStagePerRank : "parallel.schedule = \"zb-v\"");
  }
}

}  // namespace braid
