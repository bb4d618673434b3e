#include "runtime/agreement.h"

#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "config/reference.h"

namespace braid {
namespace {

/// The first line of `text` that `other` has not; empty if there is none.
std::string first_difference(const std::string& text, const std::string& other) {
  const std::vector<std::string> lines = split_text(text, '\n');
  const std::vector<std::string> others = split_text(other, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i >= others.size() || lines[i] != others[i]) {
      return lines[i];
    }
  }
  return "";
}

}  // namespace

void agree_on_configuration(ProcessGroup& processes, const RunConfig& config) {
  const std::vector<std::string> all = processes.all_gather("the configuration", to_toml(config));
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i] != all[0]) {
      throw_config_error(
          "rank {} has read another configuration than rank 0: {}, and rank 0: {}; give all "
          "processes the same run file and options",
          i, first_difference(all[i], all[0]), first_difference(all[0], all[i]));
    }
  }
}

void agree_on_device(ProcessGroup& processes, const Device& device) {
  const std::vector<std::string> all =
      processes.all_gather("the device", device.gpu ? "cuda" : "cpu: " + device.reason);
  for (size_t i = 1; i < all.size(); ++i) {
    if ((all[i] == "cuda") != (all[0] == "cuda")) {
      throw_config_error(
          "runtime.device = \"auto\": rank {} would run on {}, and rank 0 on {}; make them the "
          "same, or set runtime.device = \"cpu\"",
          i, all[i], all[0]);
    }
  }
}

void abort_with_rank(ProcessGroup& processes, const std::string& reason) {
  const bool named = processes.leads() || reason.starts_with("rank ");
  processes.abort(named ? reason : fmt::format("rank {}: {}", processes.index(), reason));
}

}  // namespace braid
