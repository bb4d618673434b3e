#include "passes/tensor/tensor_axes.h"

#include <algorithm>
#include <string>
#include <utility>

namespace braid {
namespace {

constexpr std::string_view kForward = "_fprop";
constexpr std::string_view kDgrad = "_dgrad";
constexpr std::string_view kWgrad = "_wgrad";

std::vector<std::string> sites_of(TensorSiteKind kind) {
  std::vector<std::string> names;
  for (const TensorSite& site : tensor_sites()) {
    if (site.kind == kind) {
      names.emplace_back(site.name);
    }
  }
  return names;
}

/// A method as written in an entry of tp_comm_overlap_sites.
using MethodText = std::string;

MethodText text_of(OverlapMethod method) {
  return std::string(overlap_method_name(method));
}

MethodText chunks(int splits) {
  return text_of(OverlapMethod::kChunked) + ":" + std::to_string(splits);
}

/// Overrides the method of one product.
void set_site(OverlapConfig& overlap, std::string_view site, std::string_view method) {
  const std::string entry = std::string(site) + "=";
  std::erase_if(overlap.tp_comm_overlap_sites,
                [&](const std::string& old) { return old.starts_with(entry); });
  overlap.tp_comm_overlap_sites.push_back(entry + std::string(method));
  std::ranges::sort(overlap.tp_comm_overlap_sites);
}

OverlapChange site_change(std::string site, MethodText method) {
  return [site = std::move(site), method = std::move(method)](OverlapConfig& overlap) {
    if (overlap.tp_comm_overlap) {
      set_site(overlap, site, method);
    }
  };
}

/// Sets the methods of a column-parallel linear's backward products, which share one reduction.
OverlapChange column_change(const std::string& name, const MethodText& dgrad,
                            const MethodText& wgrad) {
  return [=](OverlapConfig& overlap) {
    if (overlap.tp_comm_overlap) {
      set_site(overlap, name + std::string(kDgrad), dgrad);
      set_site(overlap, name + std::string(kWgrad), wgrad);
    }
  };
}

void no_tensor_overlap(OverlapConfig& overlap) {
  const OverlapConfig usual;
  overlap.tp_comm_overlap = false;
  overlap.tp_comm_overlap_ag = usual.tp_comm_overlap_ag;
  overlap.tp_comm_overlap_rs = usual.tp_comm_overlap_rs;
  overlap.tp_comm_overlap_rs_dgrad = usual.tp_comm_overlap_rs_dgrad;
  overlap.tp_comm_bulk_dgrad = usual.tp_comm_bulk_dgrad;
  overlap.tp_comm_bulk_wgrad = usual.tp_comm_bulk_wgrad;
  overlap.tp_comm_overlap_sites.clear();
}

/// Overlaps communication with whole products only; nothing is cut.
void bulk_overlap_only(OverlapConfig& overlap, bool sequence_parallel) {
  no_tensor_overlap(overlap);
  overlap.tp_comm_overlap = true;
  overlap.tp_comm_overlap_ag = false;
  overlap.tp_comm_overlap_rs = false;
  overlap.tp_comm_bulk_dgrad = sequence_parallel;
}

OverlapAxis axis_of(std::string name, std::vector<OverlapChange> choices) {
  return {std::move(name), std::move(choices), AxisPlace::kTensor};
}

/// The axis of a column-parallel linear, named after the linear: "qkv" for the site "qkv_dgrad".
OverlapAxis column_axis(const std::string& dgrad, bool rows, bool pieces) {
  const std::string name = dgrad.substr(0, dgrad.size() - kDgrad.size());
  const MethodText none = text_of(OverlapMethod::kNone);
  const MethodText bulk = text_of(OverlapMethod::kBulk);
  OverlapAxis column =
      axis_of(name, {column_change(name, none, none), column_change(name, none, bulk)});
  if (rows) {
    column.choices.push_back(column_change(name, bulk, none));
    column.choices.push_back(column_change(name, bulk, bulk));
  }
  if (pieces) {
    column.choices.push_back(
        column_change(name, rows ? text_of(OverlapMethod::kRing) : chunks(2), none));
  }
  return column;
}

OverlapAxis scattered_axis(const std::string& site, bool rows) {
  OverlapAxis scattered = axis_of(site, {site_change(site, text_of(OverlapMethod::kNone))});
  for (const int splits : {2, 4, 8}) {
    scattered.choices.push_back(site_change(site, chunks(splits)));
  }
  if (rows) {
    scattered.choices.push_back(site_change(site, text_of(OverlapMethod::kRing)));
  }
  return scattered;
}

}  // namespace

void use_rings(OverlapConfig& overlap) {
  no_tensor_overlap(overlap);
  overlap.tp_comm_overlap = true;
  for (const std::string& site : sites_of(TensorSiteKind::kScattered)) {
    set_site(overlap, site, text_of(OverlapMethod::kRing));
  }
}

void keep_forward_whole(OverlapConfig& overlap) {
  for (const TensorSite& site : tensor_sites()) {
    if (site.name.ends_with(kForward)) {
      set_site(overlap, site.name, text_of(OverlapMethod::kNone));
    }
  }
}

std::vector<OverlapAxis> tensor_axes(const RunConfig& config, const AxisLimits&) {
  if (config.parallel.tensor == 1) {
    return {};
  }
  const bool rows = config.parallel.sequence_parallel;
  const bool pieces = config.overlap.may_change_rounding;
  std::vector<OverlapAxis> axes = {axis_of(
      "tensor",
      {no_tensor_overlap, [rows](OverlapConfig& overlap) { bulk_overlap_only(overlap, rows); }})};
  if (rows && pieces) {
    axes.front().choices.emplace_back(use_rings);
  }
  for (const std::string& site : sites_of(TensorSiteKind::kColumnDgrad)) {
    axes.push_back(column_axis(site, rows, pieces));
  }
  if (!pieces) {
    return axes;
  }
  for (const std::string& site : sites_of(TensorSiteKind::kScattered)) {
    axes.push_back(scattered_axis(site, rows));
  }
  if (rows) {
    for (const std::string& site : sites_of(TensorSiteKind::kGathered)) {
      axes.push_back(axis_of(site, {site_change(site, text_of(OverlapMethod::kNone)),
                                    site_change(site, text_of(OverlapMethod::kRing))}));
    }
  }
  return axes;
}

}  // namespace braid
