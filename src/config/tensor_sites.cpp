#include "config/tensor_sites.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "config/value.h"

namespace braid {
namespace {

constexpr std::array kSites = {TensorSite{"qkv_fprop", TensorSiteKind::kGathered},
                               TensorSite{"fc1_fprop", TensorSiteKind::kGathered},
                               TensorSite{"logits_fprop", TensorSiteKind::kGathered},
                               TensorSite{"proj_dgrad", TensorSiteKind::kGathered},
                               TensorSite{"fc2_dgrad", TensorSiteKind::kGathered},
                               TensorSite{"proj_fprop", TensorSiteKind::kScattered},
                               TensorSite{"fc2_fprop", TensorSiteKind::kScattered},
                               TensorSite{"qkv_dgrad", TensorSiteKind::kColumnDgrad},
                               TensorSite{"fc1_dgrad", TensorSiteKind::kColumnDgrad},
                               TensorSite{"logits_dgrad", TensorSiteKind::kColumnDgrad},
                               TensorSite{"qkv_wgrad", TensorSiteKind::kColumnWgrad},
                               TensorSite{"fc1_wgrad", TensorSiteKind::kColumnWgrad},
                               TensorSite{"logits_wgrad", TensorSiteKind::kColumnWgrad}};

constexpr std::array kMethods = {OverlapMethod::kNone, OverlapMethod::kBulk, OverlapMethod::kRing,
                                 OverlapMethod::kChunked};

/// Most pieces of a product; with more, the latency of the messages dominates.
constexpr int64_t kMaxSplits = 64;

const TensorSite* find_site(std::string_view name) {
  const auto* const found = std::ranges::find(kSites, name, &TensorSite::name);
  return found == kSites.end() ? nullptr : found;
}

std::span<const OverlapMethod> methods_of(TensorSiteKind kind) {
  static constexpr std::array kGathered = {OverlapMethod::kNone, OverlapMethod::kRing};
  static constexpr std::array kScattered = {OverlapMethod::kNone, OverlapMethod::kRing,
                                            OverlapMethod::kChunked};
  static constexpr std::array kWgrad = {OverlapMethod::kNone, OverlapMethod::kBulk};
  switch (kind) {
    case TensorSiteKind::kGathered:
      return kGathered;
    case TensorSiteKind::kScattered:
      return kScattered;
    case TensorSiteKind::kColumnDgrad:
      return kMethods;
    case TensorSiteKind::kColumnWgrad:
      break;
  }
  return kWgrad;
}

/// An entry, not yet checked.
struct Entry {
  std::string site;
  std::string method;
  int64_t splits = TensorSiteChoice().splits;
};

Entry parse_entry(const std::string& entry) {
  const size_t equals = entry.find('=');
  if (equals == std::string::npos) {
    throw_config_error(
        "overlap.tp_comm_overlap_sites: {} does not have the form SITE=METHOD; write a site and a "
        "method, such as \"fc2_fprop=ring\" or \"proj_fprop=chunked:4\"",
        quote(entry, 60));
  }
  Entry parsed{.site = entry.substr(0, equals), .method = entry.substr(equals + 1)};
  const size_t colon = parsed.method.find(':');
  if (colon != std::string::npos) {
    const std::string number = parsed.method.substr(colon + 1);
    parsed.method.resize(colon);
    const char* const end = number.data() + number.size();
    const auto [stop, error] = std::from_chars(number.data(), end, parsed.splits);
    if (parsed.method != overlap_method_name(OverlapMethod::kChunked) || error != std::errc() ||
        stop != end || parsed.splits < 2 || parsed.splits > kMaxSplits) {
      throw_config_error(
          "overlap.tp_comm_overlap_sites: {}: only chunked takes a number of pieces, from 2 to {}, "
          "such as \"proj_fprop=chunked:4\"",
          quote(entry, 60), kMaxSplits);
    }
  }
  return parsed;
}

TensorSiteChoice parse_choice(const std::string& entry) {
  Entry parsed = parse_entry(entry);
  const TensorSite* const site = find_site(parsed.site);
  if (site == nullptr) {
    std::vector<std::string_view> names;
    std::ranges::transform(kSites, std::back_inserter(names), &TensorSite::name);
    throw_config_error("overlap.tp_comm_overlap_sites: {}: unknown site {} (known: {}){}",
                       quote(entry, 60), quote(parsed.site, 60), join(names, ", "),
                       did_you_mean(parsed.site, names));
  }
  const std::span<const OverlapMethod> methods = methods_of(site->kind);
  const auto method = std::ranges::find(methods, parsed.method, overlap_method_name);
  if (method == methods.end()) {
    std::vector<std::string_view> names;
    std::ranges::transform(methods, std::back_inserter(names), overlap_method_name);
    throw_config_error("overlap.tp_comm_overlap_sites: {}: {} may be {}, not {}", quote(entry, 60),
                       parsed.site, join(names, ", "), quote(parsed.method, 60));
  }
  return {.site = std::move(parsed.site), .method = *method, .splits = parsed.splits};
}

const TensorSiteChoice* find_choice(std::span<const TensorSiteChoice> choices,
                                    std::string_view site) {
  const auto found = std::ranges::find(choices, site, &TensorSiteChoice::site);
  return found == choices.end() ? nullptr : &*found;
}

OverlapMethod method_at(std::span<const TensorSiteChoice> choices, std::string_view site) {
  const TensorSiteChoice* const found = find_choice(choices, site);
  return found == nullptr ? OverlapMethod::kNone : found->method;
}

/// Once a dgrad sends its result in pieces, its wgrad has nothing left to hide.
void check_dgrads(const OverlapConfig& overlap, std::span<const TensorSiteChoice> choices) {
  for (const std::string name : {"qkv", "fc1", "logits"}) {
    const OverlapMethod dgrad = method_at(choices, name + "_dgrad");
    if ((dgrad != OverlapMethod::kRing && dgrad != OverlapMethod::kChunked) ||
        method_at(choices, name + "_wgrad") != OverlapMethod::kBulk) {
      continue;
    }
    const std::string entry = name + "_wgrad=bulk";
    const bool by_site = std::ranges::find(overlap.tp_comm_overlap_sites, entry) !=
                         overlap.tp_comm_overlap_sites.end();
    throw_config_error(
        "overlap.{}: {}_wgrad would hide a sum that {}_dgrad = {} already sends in pieces; set "
        "{}\"{}_wgrad=none\" in overlap.tp_comm_overlap_sites",
        by_site ? "tp_comm_overlap_sites: " + entry : "tp_comm_bulk_wgrad = true", name, name,
        overlap_method_name(dgrad), by_site ? "" : "overlap.tp_comm_bulk_wgrad = false, or ", name);
  }
}

/// Without sequence parallelism, sums are all-reduces and there are no gathers.
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
    const bool is_dgrad = find_site(choice.site)->kind == TensorSiteKind::kColumnDgrad;
    if (choice.method == OverlapMethod::kRing ||
        (choice.method == OverlapMethod::kBulk && is_dgrad)) {
      throw_config_error(
          "overlap.tp_comm_overlap_sites: {}={} splits or hides an all-gather or a reduce-scatter; "
          "{}",
          choice.site, overlap_method_name(choice.method), kPossible);
    }
  }
}

/// With sequence parallelism the pieces would be features of dx, columns of the weight.
void check_chunked_dgrads(std::span<const TensorSiteChoice> choices) {
  for (const TensorSiteChoice& choice : choices) {
    if (choice.method == OverlapMethod::kChunked &&
        find_site(choice.site)->kind == TensorSiteKind::kColumnDgrad) {
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

std::string_view overlap_method_name(OverlapMethod method) {
  constexpr std::array<std::string_view, 4> kNames = {"none", "bulk", "ring", "chunked"};
  return kNames[static_cast<size_t>(method)];
}

std::span<const TensorSite> tensor_sites() {
  return kSites;
}

std::vector<TensorSiteChoice> tensor_site_choices(const OverlapConfig& overlap) {
  std::vector<TensorSiteChoice> choices;
  const auto add = [&](bool is_wanted, TensorSiteKind kind, OverlapMethod method) {
    for (const TensorSite& site : kSites) {
      if (is_wanted && site.kind == kind) {
        choices.push_back({.site = std::string(site.name), .method = method});
      }
    }
  };
  add(overlap.tp_comm_overlap_ag, TensorSiteKind::kGathered, OverlapMethod::kRing);
  add(overlap.tp_comm_overlap_rs, TensorSiteKind::kScattered, OverlapMethod::kChunked);
  add(overlap.tp_comm_overlap_rs_dgrad, TensorSiteKind::kColumnDgrad, OverlapMethod::kRing);
  add(overlap.tp_comm_bulk_dgrad && !overlap.tp_comm_overlap_rs_dgrad, TensorSiteKind::kColumnDgrad,
      OverlapMethod::kBulk);
  add(overlap.tp_comm_bulk_wgrad, TensorSiteKind::kColumnWgrad, OverlapMethod::kBulk);
  for (const std::string& entry : overlap.tp_comm_overlap_sites) {
    TensorSiteChoice choice = parse_choice(entry);
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
