#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.h"

namespace braid {

/// How the communication of tensor ranks beside one matrix product is asked for: an entry of
/// overlap.tp_comm_overlap_sites, "SITE=METHOD" or "SITE=chunked:SPLITS".
struct TensorSiteChoice {
  std::string site;    ///< "qkv_fprop", ...
  std::string method;  ///< "none", "bulk", "ring" or "chunked"
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
