#pragma once

#include <string>
#include <vector>

#include "base/errors.h"
#include "config/load.h"

namespace braid {

/// The message of the ConfigError that `run` throws; "no error" if it throws none.
template <class Run>
std::string config_error_of(Run run) {
  try {
    run();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

/// A configuration that `validate` accepts: what has no usable default is set.
inline RunConfig valid_config() {
  RunConfig config;
  config.model.layers = 2;
  config.model.width = 64;
  config.model.heads = 4;
  config.data.train = "corpus.txt";
  config.logging.run_folder = "runs/test";
  return config;
}

}  // namespace braid
