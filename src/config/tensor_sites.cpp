#include "config/tensor_sites.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "config/value.h"

namespace braid {
namespace {

/// What communicates beside a product.
enum class SiteKind : uint8_t {
  kGathered,     ///< the product reads what is gathered
  kScattered,    ///< its result is summed over ranks, and its features may be cut
  kColumnDgrad,  ///< its result is summed over ranks; what the wgrad reads may be gathered beside
  kColumnWgrad,  ///< the sum of the dgrad's result may run beside
};

struct Site {
  std::string_view name;
  SiteKind kind;
};

constexpr std::array kSites = {
    Site{"qkv_fprop", SiteKind::kGathered},      Site{"fc1_fprop", SiteKind::kGathered},
    Site{"logits_fprop", SiteKind::kGathered},   Site{"proj_dgrad", SiteKind::kGathered},
    Site{"fc2_dgrad", SiteKind::kGathered},      Site{"proj_fprop", SiteKind::kScattered},
    Site{"fc2_fprop", SiteKind::kScattered},     Site{"qkv_dgrad", SiteKind::kColumnDgrad},
    Site{"fc1_dgrad", SiteKind::kColumnDgrad},   Site{"logits_dgrad", SiteKind::kColumnDgrad},
    Site{"qkv_wgrad", SiteKind::kColumnWgrad},   Site{"fc1_wgrad", SiteKind::kColumnWgrad},
    Site{"logits_wgrad", SiteKind::kColumnWgrad}};

constexpr std::array<std::string_view, 4> kMethods = {"none", "bulk", "ring", "chunked"};

/// Pieces of a product; above it a collective would be a message of latency only.
constexpr int64_t kMaxSplits = 64;

const Site* find_site(std::string_view name) {
  const auto* const found = std::ranges::find(kSites, name, &Site::name);
  return found == kSites.end() ? nullptr : found;
}

std::span<const std::string_view> methods_of(SiteKind kind) {
  static constexpr std::array<std::string_view, 2> kGathered = {"none", "ring"};
  static constexpr std::array<std::string_view, 3> kScattered = {"none", "ring", "chunked"};
  static constexpr std::array<std::string_view, 2> kWgrad = {"none", "bulk"};
  switch (kind) {
    case SiteKind::kGathered:
      return kGathered;
    case SiteKind::kScattered:
      return kScattered;
    case SiteKind::kColumnDgrad:
      return kMethods;
    case SiteKind::kColumnWgrad:
      break;
  }
  return kWgrad;
}

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

TensorSiteChoice parse_choice(const std::string& entry) {
  const size_t equals = entry.find('=');
  if (equals == std::string::npos) {
    throw_config_error(
        "overlap.tp_comm_overlap_sites: {} does not have the form SITE=METHOD; write a site and a "
        "method, such as \"fc2_fprop=ring\" or \"proj_fprop=chunked:4\"",
        quote(entry, 60));
  }
  TensorSiteChoice choice{.site = entry.substr(0, equals), .method = entry.substr(equals + 1)};
  const size_t colon = choice.method.find(':');
  if (colon != std::string::npos) {
    const std::string number = choice.method.substr(colon + 1);
    choice.method.resize(colon);
    const char* const end = number.data() + number.size();
    const auto [stop, error] = std::from_chars(number.data(), end, choice.splits);
    if (choice.method != "chunked" || error != std::errc() || stop != end || choice.splits < 2 ||
        choice.splits > kMaxSplits) {
      throw_config_error(
          "overlap.tp_comm_overlap_sites: {}: only chunked takes a number of pieces, from 2 to {}, "
          "such as \"proj_fprop=chunked:4\"",
          quote(entry, 60), kMaxSplits);
    }
  }
  return choice;
}

void check_choice(const TensorSiteChoice& choice, const std::string& entry) {
  const Site* const site = find_site(choice.site);
  if (site == nullptr) {
    std::vector<std::string_view> names;
    for (const Site& known : kSites) {
      names.push_back(known.name);
    }
    throw_config_error("overlap.tp_comm_overlap_sites: {}: unknown site {} (known: {}){}",
                       quote(entry, 60), quote(choice.site, 60), join(names, ", "),
                       did_you_mean(choice.site, names));
  }
  const std::span<const std::string_view> methods = methods_of(site->kind);
  if (!contains(methods, choice.method)) {
    throw_config_error("overlap.tp_comm_overlap_sites: {}: {} may be {}, not {}", quote(entry, 60),
                       choice.site, join(methods, ", "), quote(choice.method, 60));
  }
}

const TensorSiteChoice* find_choice(std::span<const TensorSiteChoice> choices,
                                    std::string_view site) {
  const auto found = std::ranges::find(choices, site, &TensorSiteChoice::site);
  return found == choices.end() ? nullptr : &*found;
}

std::string_view method_at(std::span<const TensorSiteChoice> choices, std::string_view site) {
  const TensorSiteChoice* const found = find_choice(choices, site);
  return found == nullptr ? "none" : std::string_view(found->method);
}

/// Once a dgrad sends its result away in pieces, nothing is left for its wgrad to hide.
void check_dgrads(const OverlapConfig& overlap, std::span<const TensorSiteChoice> choices) {
  for (const std::string name : {"qkv", "fc1", "logits"}) {
    const std::string_view dgrad = method_at(choices, name + "_dgrad");
    if ((dgrad != "ring" && dgrad != "chunked") || method_at(choices, name + "_wgrad") != "bulk") {
      continue;
    }
    const std::string entry = name + "_wgrad=bulk";
    const bool by_site = std::ranges::find(overlap.tp_comm_overlap_sites, entry) !=
                         overlap.tp_comm_overlap_sites.end();
    throw_config_error(
        "overlap.{}: {}_wgrad would hide a sum that {}_dgrad = {} already sends in pieces; set "
        "{}\"{}_wgrad=none\" in overlap.tp_comm_overlap_sites",
        by_site ? "tp_comm_overlap_sites: " + entry : "tp_comm_bulk_wgrad = true", name, name,
        dgrad, by_site ? "" : "overlap.tp_comm_bulk_wgrad = false, or ", name);
  }
}

/// Without sequence parallelism sums are all-reduces, and nothing is gathered.
void check_without_sequence_parallel(const OverlapConfig& overlap,
                                     std::span<const TensorSiteChoice> choices) {
  constexpr std::string_view kPossible =
      "set parallel.sequence_parallel = true. Without it there are only all-reduces, which can run "
      "beside the wgrads (tp_comm_bulk_wgrad) or in pieces (sites such as "
      "\"proj_fprop=chunked:4\"), with tp_comm_overlap_ag, tp_comm_overlap_rs, "
      "tp_comm_overlap_rs_dgrad and tp_comm_bulk_dgrad = false";
  const std::array<std::pair<std::string_view, bool>, 4> keys = {
      {{"tp_comm_overlap_ag", overlap.tp_comm_overlap_ag},
       {"tp_comm_overlap_rs", overlap.tp_comm_overlap_rs},
       {"tp_comm_overlap_rs_dgrad", overlap.tp_comm_overlap_rs_dgrad},
       {"tp_comm_bulk_dgrad", overlap.tp_comm_bulk_dgrad}}};
  for (const auto& [name, value] : keys) {
    if (value) {
      throw_config_error("overlap.{} = true: splits or hides an all-gather or a reduce-scatter; {}",
                         name, kPossible);
    }
  }
  for (const TensorSiteChoice& choice : choices) {
    const bool is_dgrad = find_site(choice.site)->kind == SiteKind::kColumnDgrad;
    if (choice.method == "ring" || (choice.method == "bulk" && is_dgrad)) {
      throw_config_error(
          "overlap.tp_comm_overlap_sites: {}={} splits or hides an all-gather or a reduce-scatter; "
          "{}",
          choice.site, choice.method, kPossible);
    }
  }
}

/// With sequence parallelism the pieces would be features of dx, columns of the weight.
void check_chunked_dgrads(std::span<const TensorSiteChoice> choices) {
  for (const TensorSiteChoice& choice : choices) {
    if (choice.method == "chunked" && find_site(choice.site)->kind == SiteKind::kColumnDgrad) {
      throw_config_error(
          "overlap.tp_comm_overlap_sites: {}=chunked: with parallel.sequence_parallel = true, the "
          "pieces of a dgrad would be columns of the weight, which are not contiguous; set "
          "\"{}=ring\" or \"{}=bulk\"",
          choice.site, choice.site, choice.site);
    }
  }
}

void check_is_read(const OverlapConfig& overlap, const ParallelConfig& parallel) {
  if (overlap.tp_comm_overlap && overlap.mode != "manual") {
    throw_config_error(
        "overlap.tp_comm_overlap = true: is read with mode = \"manual\" only; mode is {}; set "
        "overlap.mode = \"manual\" or remove the key",
        quote(overlap.mode));
  }
  const OverlapConfig usual;
  const auto check_key = [&](std::string_view name, const auto& value, const auto& unset) {
    if (value != unset && parallel.tensor == 1) {
      throw_config_error(
          "overlap.{} = {}: concerns communication of tensor ranks, but parallel.tensor = 1; set "
          "parallel.tensor above 1 or remove the key",
          name, to_text(ConfigValue(value), 60));
    }
    if (value != unset && !overlap.tp_comm_overlap) {
      throw_config_error(
          "overlap.{} = {}: is read with tp_comm_overlap = true only; set overlap.mode = "
          "\"manual\" and overlap.tp_comm_overlap = true, or remove the key",
          name, to_text(ConfigValue(value), 60));
    }
  };
  check_key("tp_comm_overlap", overlap.tp_comm_overlap, false);
  check_key("tp_comm_overlap_ag", overlap.tp_comm_overlap_ag, usual.tp_comm_overlap_ag);
  check_key("tp_comm_overlap_rs", overlap.tp_comm_overlap_rs, usual.tp_comm_overlap_rs);
  check_key("tp_comm_overlap_rs_dgrad", overlap.tp_comm_overlap_rs_dgrad, false);
  check_key("tp_comm_bulk_dgrad", overlap.tp_comm_bulk_dgrad, usual.tp_comm_bulk_dgrad);
  check_key("tp_comm_bulk_wgrad", overlap.tp_comm_bulk_wgrad, usual.tp_comm_bulk_wgrad);
  check_key("tp_comm_overlap_sites", overlap.tp_comm_overlap_sites, usual.tp_comm_overlap_sites);
  check_key("tp_comm_overlap_min_rows", overlap.tp_comm_overlap_min_rows,
            usual.tp_comm_overlap_min_rows);
}

}  // namespace

std::vector<TensorSiteChoice> tensor_site_choices(const OverlapConfig& overlap) {
  std::vector<TensorSiteChoice> choices;
  const auto add = [&](bool is_wanted, SiteKind kind, const char* method) {
    for (const Site& site : kSites) {
      if (is_wanted && site.kind == kind) {
        choices.push_back({.site = std::string(site.name), .method = method});
      }
    }
  };
  add(overlap.tp_comm_overlap_ag, SiteKind::kGathered, "ring");
  add(overlap.tp_comm_overlap_rs, SiteKind::kScattered, "chunked");
  add(overlap.tp_comm_overlap_rs_dgrad, SiteKind::kColumnDgrad, "ring");
  add(overlap.tp_comm_bulk_dgrad && !overlap.tp_comm_overlap_rs_dgrad, SiteKind::kColumnDgrad,
      "bulk");
  add(overlap.tp_comm_bulk_wgrad, SiteKind::kColumnWgrad, "bulk");
  for (const std::string& entry : overlap.tp_comm_overlap_sites) {
    TensorSiteChoice choice = parse_choice(entry);
    check_choice(choice, entry);
    std::erase_if(choices, [&](const TensorSiteChoice& old) { return old.site == choice.site; });
    choices.push_back(std::move(choice));
  }
  return choices;
}

void validate_tensor_overlap(const OverlapConfig& overlap, const ParallelConfig& parallel) {
  check_is_read(overlap, parallel);
  if (!overlap.tp_comm_overlap) {
    return;
  }
  const std::vector<TensorSiteChoice> choices = tensor_site_choices(overlap);
  check_dgrads(overlap, choices);
  if (parallel.sequence_parallel) {
    check_chunked_dgrads(choices);
  } else {
    check_without_sequence_parallel(overlap, choices);
  }
}

}  // namespace braid
