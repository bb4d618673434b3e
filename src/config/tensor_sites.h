#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"

namespace braid {

/// How the communication of tensor ranks runs beside one matrix product.
enum class OverlapMethod : uint8_t {
  kNone,     ///< between products
  kBulk,     ///< as a whole, beside a product that does not depend on it
  kRing,     ///< in as many blocks of rows as there are ranks, each sent while the next is computed
  kChunked,  ///< the product in pieces, a collective behind each
};

/// "none", "bulk", "ring", "chunked".
std::string_view overlap_method_name(OverlapMethod method);

/// What communicates beside a product.
enum class TensorSiteKind : uint8_t {
  kGathered,     ///< the product reads what is gathered
  kScattered,    ///< its result is summed over ranks, and its features may be cut
  kColumnDgrad,  ///< its result is summed over ranks; what the wgrad reads may be gathered beside
  kColumnWgrad,  ///< the sum of the dgrad's result may run beside
};

/// A matrix product of a layer, or of the head, beside which tensor ranks communicate. Named as in
/// Transformer Engine: "qkv", "proj", "fc1", "fc2", or "logits" for the output layer, and behind it
/// "_fprop", "_dgrad" or "_wgrad".
struct TensorSite {
  std::string_view name;
  TensorSiteKind kind;
};

/// All of them, those of a kind together.
std::span<const TensorSite> tensor_sites();

/// How the communication of tensor ranks beside one matrix product is asked for: an entry of
/// overlap.tp_comm_overlap_sites, "SITE=METHOD" or "SITE=chunked:SPLITS".
struct TensorSiteChoice {
  std::string site;  ///< "qkv_fprop", ...
  OverlapMethod method = OverlapMethod::kNone;
  int64_t splits = 4;  ///< of chunked
};

/// The choice of each site: what the tp_comm_ keys say, then the entries of tp_comm_overlap_sites.
/// Sites that nothing speaks of are not listed: none. Throws ConfigError, naming the entry, for a
/// site, a method or a number that is none, and for a method that its site cannot have.
std::vector<TensorSiteChoice> tensor_site_choices(const OverlapConfig& overlap);

/// Refuses tp_comm_ keys that do nothing or contradict each other, here or beside [parallel].
/// Throws ConfigError.
void validate_tensor_overlap(const OverlapConfig& overlap, const ParallelConfig& parallel);

}  // namespace braid
