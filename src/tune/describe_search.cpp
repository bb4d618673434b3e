#include "tune/describe_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "plan/more_room.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNsPerS = 1e9;

double seconds(double ns) {
  return ns / kNsPerS;
}

double seconds(int64_t ns) {
  return static_cast<double>(ns) / kNsPerS;
}

/// Percentage of the tasks' part of the step, which is the sum of the means.
double percent(const RankedLayout& row, double ns) {
  const SimulatedMeans& means = row.means;
  const double all = means.compute_ns + means.all_exposed_ns + means.copy_ns + means.idle_ns();
  return all > 0 ? 100.0 * ns / all : 0.0;
}

std::string_view more_compute(const RankedLayout& slower, const RankedLayout& best) {
  const RecomputeChoice slow = slower.layout.recompute;
  const RecomputeChoice fast = best.layout.recompute;
  return slow > fast   ? "more recompute"
         : slow < fast ? "slower compute, despite less recompute"
                       : "slower compute (smaller products, or contention)";
}

struct Part {
  std::string what;
  double more_ns = 0;
};

/// Differences between the steps, part by part. They add up to the total difference, except when
/// several kinds of communication are exposed at once.
std::vector<Part> differences(const RankedLayout& slower, const RankedLayout& best) {
  std::vector<Part> parts;
  const auto add = [&](std::string what, double slower_ns, double best_ns) {
    parts.push_back({std::move(what), slower_ns - best_ns});
  };
  const SimulatedMeans& a = slower.means;
  const SimulatedMeans& b = best.means;
  add(std::string(more_compute(slower, best)), a.compute_ns, b.compute_ns);
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    add(fmt::format("more exposed {} communication", group_kind_name(static_cast<GroupKind>(kind))),
        a.exposed_ns[kind], b.exposed_ns[kind]);
  }
  add("more bubble", a.idle_ns(), b.idle_ns());
  add("more copies", a.copy_ns, b.copy_ns);
  std::ranges::stable_sort(parts, std::greater<>(), &Part::more_ns);
  return parts;
}

std::string counts_text(const LayoutSearch& search) {
  const SearchCounts& counts = search.counts;
  return fmt::format(
      "layouts   {} considered: {} refused by the rules, {} too big{}, {} slower by estimate, {} "
      "simulated\n",
      format_count(counts.looked_at), format_count(counts.refused), format_count(counts.too_big),
      search.memory_bytes ? " for " + format_bytes(*search.memory_bytes) : "",
      format_count(counts.behind), counts.simulated);
}

std::string table_text(const LayoutSearch& search, size_t rows) {
  size_t width = 6;
  for (size_t i = 0; i < rows; ++i) {
    width = std::max(width, layout_name(search.ranked[i].layout).size());
  }
  std::string text =
      fmt::format("rank  {:<{}}  tokens/s/rank    MFU    step, s  bubble  exposed  peak, GiB\n",
                  "layout", width);
  for (size_t i = 0; i < rows; ++i) {
    const RankedLayout& row = search.ranked[i];
    text += fmt::format(
        "{:>4}{} {:<{}}  {:>13.1f}  {:>4.1f}%  {:>9.4g}  {:>5.1f}%  {:>6.1f}%  {:>9.1f}\n", i + 1,
        row.is_given ? '*' : ' ', layout_name(row.layout), width, row.tokens_per_s_per_rank,
        100.0 * row.mfu, seconds(row.step_ns), percent(row, row.means.idle_ns()),
        percent(row, row.means.all_exposed_ns), static_cast<double>(row.needed_bytes) * 0x1p-30);
  }
  return text;
}

double device_hours_per_billion_tokens(const RankedLayout& row) {
  constexpr double kSecondsPerHour = 3600;
  return 1e9 / row.tokens_per_s_per_rank / kSecondsPerHour;
}

/// Of devices that draw their limit all the time; 0: unknown.
double most_joules_per_token(const RankedLayout& row) {
  return row.power_w / row.tokens_per_s_per_rank;
}

std::string price_text(const RankedLayout& best) {
  return fmt::format("price     the best: {:.4g} device-hours per billion tokens{}\n",
                     device_hours_per_billion_tokens(best),
                     best.power_w > 0
                         ? fmt::format(", at most {:.3g} J per token in devices of {:.0f} W",
                                       most_joules_per_token(best), best.power_w)
                         : "");
}

/// The place of the run file's own layout among those that were simulated, from 1; 0: it has none.
size_t place_of_given(const LayoutSearch& search) {
  const auto found = std::ranges::find(search.ranked, true, &RankedLayout::is_given);
  return found == search.ranked.end() ? 0 : static_cast<size_t>(found - search.ranked.begin()) + 1;
}

/// "+8.9%", "the fastest".
std::string behind_best(const LayoutSearch& search) {
  const auto best_ns = static_cast<double>(search.ranked.front().step_ns);
  const double more = static_cast<double>(search.given.step_ns) / best_ns - 1;
  return place_of_given(search) == 1 ? "the fastest" : fmt::format("{:+.1f}%", 100.0 * more);
}

std::string given_text(const LayoutSearch& search) {
  const GivenLayout& given = search.given;
  const std::string name = layout_name(given.layout);
  if (!given.refusal.empty()) {
    return fmt::format("run file  its layout is refused: {}\n", given.refusal);
  }
  if (given.fits) {
    return fmt::format("run file  place {} of {}: {}, {} ({})\n", place_of_given(search),
                       search.ranked.size(), name, format_duration(seconds(given.step_ns)),
                       behind_best(search));
  }
  const std::string limit = format_bytes(search.memory_bytes.value_or(0));
  const std::string needed = format_bytes(given.needed_bytes);
  if (given.step_ns > 0) {
    return fmt::format("run file  {} needs {}, more than {}; it would take {}\n", name, needed,
                       limit, format_duration(seconds(given.step_ns)));
  }
  const bool is_too_big = search.memory_bytes && given.needed_bytes > *search.memory_bytes;
  return fmt::format("run file  {}: {}, {} by estimate{}\n", name,
                     format_duration(seconds(given.estimated_ns)), needed,
                     is_too_big ? ", more than " + limit : "");
}

Json given_json(const LayoutSearch& search) {
  const GivenLayout& given = search.given;
  Json json{{"layout", layout_name(given.layout)},
            {"fits", given.fits},
            {"estimated_ns", std::llround(given.estimated_ns)},
            {"needed_bytes", given.needed_bytes},
            {"step_ns", given.step_ns}};
  if (!given.refusal.empty()) {
    json["refusal"] = given.refusal;
  }
  if (const size_t place = place_of_given(search); place > 0) {
    json["place"] = place;
  }
  return json;
}

/// Quotes a shell argument if it contains other letters than these.
std::string shell_word(const std::string& text) {
  const bool plain = std::ranges::all_of(text, [](char letter) {
    return std::isalnum(static_cast<unsigned char>(letter)) != 0 ||
           std::string_view("._-=/").find(letter) != std::string_view::npos;
  });
  return plain ? text : "'" + text + "'";
}

/// Layouts whose ranks exchange rows need much memory if they have room for all that can come.
std::string room_text(const LayoutSearch& search, const RunConfig& config) {
  const auto exchanges = [](const RankedLayout& row) { return row.layout.expert > 1; };
  return could_have_less_room(config.moe) && std::ranges::any_of(search.ranked, exchanges)
             ? fmt::format(
                   "room      ranks with different experts have room for all rows that can "
                   "come; with moe.capacity = {} more layouts fit\n",
                   kUsualCapacity)
             : "";
}

std::string command_text(const LayoutSearch& search, const RunConfig& config,
                         const std::string& run_file) {
  std::string text =
      fmt::format("the best  braid train {}", run_file.empty() ? "run.toml" : shell_word(run_file));
  for (const std::string& override_text : layout_overrides(config, search.ranked.front().layout)) {
    text += " \\\n            --set " + shell_word(override_text);
  }
  return text + "\n";
}

Json layout_json(const RankedLayout& row, const RunConfig& config) {
  Json exposed = Json::object();
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    if (row.means.communication_ns[kind] > 0) {
      exposed[std::string(group_kind_name(static_cast<GroupKind>(kind)))] =
          row.means.exposed_ns[kind];
    }
  }
  return {{"layout", layout_name(row.layout)},
          {"set", layout_overrides(config, row.layout)},
          {"step_ns", row.step_ns},
          {"estimated_ns", std::llround(row.estimated_ns)},
          {"estimated_bytes", std::llround(row.estimated_bytes)},
          {"tokens_per_s_per_rank", row.tokens_per_s_per_rank},
          {"device_hours_per_billion_tokens", device_hours_per_billion_tokens(row)},
          {"most_joules_per_token", row.power_w > 0 ? Json(most_joules_per_token(row)) : Json()},
          {"mfu", row.mfu},
          {"compute_ns", row.means.compute_ns},
          {"exposed_ns", row.means.all_exposed_ns},
          {"exposed_by_kind_ns", exposed},
          {"idle_ns", row.means.idle_ns()},
          {"copy_ns", row.means.copy_ns},
          {"needed_bytes", row.needed_bytes}};
}

}  // namespace

std::string why_slower(const RankedLayout& slower, const RankedLayout& best) {
  const auto difference_ns = static_cast<double>(slower.step_ns - best.step_ns);
  const std::vector<Part> parts = differences(slower, best);
  std::vector<std::string> texts;
  for (const Part& part : parts) {
    if (part.more_ns > 0 && part.more_ns >= 0.1 * difference_ns && texts.size() < 2) {
      texts.push_back(fmt::format("{} (+{})", part.what, format_duration(seconds(part.more_ns))));
    }
  }
  return fmt::format(
      "+{:.1f}%: {}",
      100.0 * difference_ns / static_cast<double>(std::max<int64_t>(best.step_ns, 1)),
      texts.empty() ? "as fast" : join(texts, ", "));
}

std::string describe_found(const LayoutSearch& search, size_t rows) {
  if (search.ranked.empty()) {
    return given_text(search);
  }
  const RankedLayout& best = search.ranked.front();
  const std::string line =
      fmt::format("found     {}: {}, {}; {} simulated\n", format_duration(seconds(best.step_ns)),
                  layout_name(best.layout), format_bytes(best.needed_bytes), search.ranked.size());
  return rows == 0 ? line : line + table_text(search, std::min(rows, search.ranked.size()));
}

std::string describe_search(const LayoutSearch& search, const RunConfig& config,
                            const SearchTableOptions& options) {
  const size_t rows = std::min(options.rows, search.ranked.size());
  std::string text = counts_text(search) + table_text(search, rows);
  for (size_t i = 1; i < rows; ++i) {
    text += fmt::format("{} {:>2}  {}\n", i == 1 ? "why not" : "       ", i + 1,
                        why_slower(search.ranked[i], search.ranked.front()));
  }
  text += price_text(search.ranked.front());
  text += room_text(search, config);
  text += given_text(search);
  if (search.was_stopped) {
    text += "stopped   before all layouts were searched; those above are the fastest so far\n";
  }
  return text + command_text(search, config, options.run_file);
}

std::string search_json(const LayoutSearch& search, const RunConfig& config, size_t rows) {
  Json layouts = Json::array();
  for (size_t i = 0; i < std::min(rows, search.ranked.size()); ++i) {
    layouts.push_back(layout_json(search.ranked[i], config));
  }
  const SearchCounts& counts = search.counts;
  const Json json = {
      {"counts",
       {{"looked_at", counts.looked_at},
        {"refused", counts.refused},
        {"too_big", counts.too_big},
        {"behind", counts.behind},
        {"simulated", counts.simulated}}},
      {"was_stopped", search.was_stopped},
      {"memory_limit_bytes", search.memory_bytes ? Json(*search.memory_bytes) : Json(nullptr)},
      {"layouts", layouts},
      {"given", given_json(search)}};
  return json.dump(2) + "\n";
}

}  // namespace braid
