#pragma once

#include <string>
#include <vector>

#include "sim/cost_model.h"

namespace braid {

/// A row of a published output of nccl-tests.
struct NcclTime {
  int64_t bytes = 0;
  double us = 0;
};

/// One published output of nccl-tests (bench/published/collectives.txt has the meaning of each
/// field).
struct NcclTable {
  std::string name;
  std::string cluster;
  CommKind kind = CommKind::kAllReduce;
  bool is_fitted = false;  ///< whether prices may be fitted to it: the coin of fitting_half.h
  std::vector<NcclTime> times;
};

/// Throws DataError for a line that cannot be read, with its number.
std::vector<NcclTable> load_nccl_tables(const std::string& path);

}  // namespace braid
