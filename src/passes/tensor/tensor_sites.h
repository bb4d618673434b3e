#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "config/tensor_sites.h"
#include "ir/program.h"

namespace braid {

struct SiteOverlap {
  OverlapMethod method = OverlapMethod::kNone;
  int64_t splits = 4;  ///< of kChunked

  friend bool operator==(const SiteOverlap&, const SiteOverlap&) = default;
};

/// Methods by name of a product (config/tensor_sites.h). Sites that are not listed use kNone.
using SiteOverlaps = std::map<std::string, SiteOverlap, std::less<>>;

/// The methods that section [overlap] sets, with tp_comm_overlap = true. Throws ConfigError as
/// `tensor_site_choices`.
SiteOverlaps site_overlaps(const OverlapConfig& overlap);

/// The defaults of these keys, which are those of Transformer Engine:
///   all-gather before the product: ring at qkv, fc1, logits _fprop and at proj, fc2 _dgrad
///   reduce-scatter of the product's result: chunked at proj, fc2 _fprop
///   all-gather for the wgrad, beside an independent product: bulk at qkv, fc1, logits _dgrad
///   reduce-scatter of dx, beside an independent product: bulk at qkv, fc1, logits _wgrad
SiteOverlaps default_site_overlaps();

/// The name of the product that a task computes; empty if it computes none.
std::string product_site(const Program& program, const Task& task);

/// The method for a site.
SiteOverlap overlap_of(const SiteOverlaps& sites, std::string_view site);

/// Whether the task communicates in a group of kind tensor of at least two ranks.
bool is_tensor_communication(const Program& program, const Task& task);

/// Whether rows of the program are in an order of experts, of which a part of the rows or features
/// of tokens is no run. Passes that cut these leave such programs alone.
bool routes_tokens(const Program& program);

/// Moves all communication in groups of kind tensor to the stream "comm.tensor" (created if
/// missing). A communicator takes one call at a time, and calls of two groups must come in the same
/// order on all ranks, which is the program order. Drops events if it changes anything. Returns
/// whether it does.
bool move_tensor_communication(Program& program, int priority);

}  // namespace braid
