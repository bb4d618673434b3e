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

/// By name of a product (config/tensor_sites.h). A site that is not listed: none.
using SiteOverlaps = std::map<std::string, SiteOverlap, std::less<>>;

/// What section [overlap] says, with tp_comm_overlap = true. Throws ConfigError as
/// `tensor_site_choices`.
SiteOverlaps site_overlaps(const OverlapConfig& overlap);

/// The defaults of these keys, which are those of Transformer Engine:
///   communication           depends on the product    sites                                 method
///   all-gather in front     yes                       qkv, fc1, logits _fprop;              ring
///                                                     proj, fc2 _dgrad
///   reduce-scatter behind   yes                       proj, fc2 _fprop chunked all-gather for
///   wgrad    no                        qkv, fc1, logits _dgrad               bulk reduce-scatter
///   of dx    no                        qkv, fc1, logits _wgrad               bulk
SiteOverlaps default_site_overlaps();

/// The name of the product that a task computes; empty if it computes none.
std::string product_site(const Program& program, const Task& task);

/// What is chosen for a site.
SiteOverlap overlap_of(const SiteOverlaps& sites, std::string_view site);

/// Whether the task communicates in a group of kind tensor of at least two ranks.
bool is_tensor_communication(const Program& program, const Task& task);

/// Places all communication in groups of kind tensor on the stream "comm.tensor" (made if missing):
/// a communicator takes one call at a time, and calls of two groups come in one order on all ranks,
/// which is that of the program. Drops events if it changes anything, and says whether it does.
bool move_tensor_communication(Program& program, int priority);

}  // namespace braid
