#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"

namespace braid {

/// How the communication of tensor ranks overlaps one matrix product.
enum class OverlapMethod : uint8_t {
  kNone,     ///< between products
  kBulk,     ///< as a whole, beside a product that does not depend on it
  kRing,     ///< in as many blocks of rows as there are ranks, each sent while the next is computed
  kChunked,  ///< the product in pieces, a collective behind each
};

/// "none", "bulk", "ring", "chunked".
std::string_view overlap_method_name(OverlapMethod method);

/// Which communication can overlap a product.
enum class TensorSiteKind : uint8_t {
  kGathered,     ///< the product reads what is gathered
  kScattered,    ///< its result is summed over ranks, and its features may be cut
  kColumnDgrad,  ///< its result is summed over ranks; what the wgrad reads may be gathered beside
  kColumnWgrad,  ///< the sum of the dgrad's result may run beside
};

/// A matrix product of a layer, or of the head, that can overlap communication of tensor ranks.
/// Named as in Transformer Engine: "qkv", "proj", "fc1", "fc2", or "logits" for the output layer,
/// followed by "_fprop", "_dgrad" or "_wgrad".
struct TensorSite {
  std::string_view name;
  TensorSiteKind kind;
};

/// All sites, grouped by kind.
std::span<const TensorSite> tensor_sites();

/// The requested method for one matrix product: an entry of overlap.tp_comm_overlap_sites,
/// "SITE=METHOD" or "SITE=chunked:SPLITS".
struct TensorSiteChoice {
  std::string site;  ///< "qkv_fprop", ...
  OverlapMethod method = OverlapMethod::kNone;
  int64_t splits = 4;  ///< of chunked
};

/// The choice for each site: the tp_comm_ keys first, then the entries of tp_comm_overlap_sites.
/// Sites without a choice are not listed: none. Throws ConfigError, naming the entry, for an
/// invalid site, method or number, and for a method that its site cannot have.
std::vector<TensorSiteChoice> tensor_site_choices(const OverlapConfig& overlap);

/// Refuses tp_comm_ keys that have no effect or contradict each other or [parallel]. Throws
/// ConfigError.
void validate_tensor_overlap(const OverlapConfig& overlap, const ParallelConfig& parallel);

}  // namespace braid
