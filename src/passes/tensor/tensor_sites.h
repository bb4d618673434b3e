#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "ir/program.h"

namespace braid {

/// How the communication of tensor ranks runs beside one matrix product.
enum class OverlapMethod : uint8_t {
  kNone,     ///< between products
  kBulk,     ///< as a whole, beside a product that does not depend on it
  kRing,     ///< in as many blocks of rows as there are ranks, each sent while the next is computed
  kChunked,  ///< the product in `splits` pieces, a collective behind each
};

/// "none", "bulk", "ring", "chunked".
std::string_view overlap_method_name(OverlapMethod method);

struct SiteOverlap {
  OverlapMethod method = OverlapMethod::kNone;
  int64_t splits = 4;  ///< of kChunked

  friend bool operator==(const SiteOverlap&, const SiteOverlap&) = default;
};

/// By name of a product, as in Transformer Engine: "qkv", "proj", "fc1", "fc2", or "logits" for the
/// output layer, and behind it "_fprop", "_dgrad" or "_wgrad". A site that is not listed: none.
///
///   communication           depends on       sites                                    default
///   all-gather in front     yes              qkv, fc1, logits _fprop; proj, fc2 _dgrad  ring
///   reduce-scatter behind   yes              proj, fc2 _fprop                           chunked
///   reduce-scatter behind   yes              qkv, fc1, logits _dgrad                    (the
///   wgrad) all-gather for wgrad    no               qkv, fc1, logits _dgrad bulk reduce-scatter of
///   dx    no               qkv, fc1, logits _wgrad                    bulk
using SiteOverlaps = std::map<std::string, SiteOverlap, std::less<>>;

/// The defaults of Transformer Engine: the table's last column.
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
