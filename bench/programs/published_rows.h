#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"

namespace braid {

/// A training step that others published (bench/published/rows.txt has the meaning of each field).
struct PublishedRow {
  std::string name;
  std::string stack;
  std::string cluster;
  std::string model;
  RunConfig config;  ///< resolved
  std::string layout;
  double seconds = 0;
  bool is_fitted = false;  ///< whether stacks may be fitted to it: the coin of fitting_half.h
};

/// The rows of `folder`/rows.txt with the models of `folder`/models.txt. Paths of clusters are
/// relative to the repository's root, two folders above. Throws DataError for a line that cannot be
/// read, and ConfigError for a run that cannot exist, each with its line.
std::vector<PublishedRow> load_published_rows(const std::string& folder);

}  // namespace braid
