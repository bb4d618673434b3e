#include "launch/launch.h"

#include <algorithm>

#include "base/build_id.h"
#include "base/errors.h"
#include "comm/tcp/tcp_rendezvous.h"
#include "config/choices.h"
#include "config/validate.h"
#include "launch/environment/run_secret.h"
#include "runtime/device.h"

namespace braid {

std::string why_not_per_rank(const RunConfig& config) {
  if (emulates_links(config.links)) {
    return "section [links] emulates links between ranks of one process; remove it, or set "
           "runtime.processes = \"one\"";
  }
  return "";
}

bool wants_processes(const RunConfig& config) {
  validate(config);
  const auto processes = choice<ProcessChoice>(config.runtime.processes);
  if (config.parallel.ranks == 1 || processes == ProcessChoice::kOne) {
    return false;
  }
  const std::string reason = why_not_per_rank(config);
  if (processes == ProcessChoice::kAuto) {
    const Backend* const named = named_backend(config);
    if (!reason.empty() || (named != nullptr && named->is_host)) {
      return false;
    }
    const RunConfig whole = resolved(config);
    return choose_device(whole, gpus_for(whole)).gpu.has_value();
  }
  if (!reason.empty()) {
    throw_config_error("runtime.processes = \"per_rank\": {}", reason);
  }
  return true;
}

void check_launch(const Launch& launch, const RunConfig& config) {
  if (launch.num_processes != config.parallel.ranks) {
    throw_config_error(
        "{} started {} processes, but parallel.ranks = {}, and a process has one rank; start {} "
        "processes or set parallel.ranks = {}",
        launch.launcher, launch.num_processes, config.parallel.ranks, config.parallel.ranks,
        launch.num_processes);
  }
  if (choice<ProcessChoice>(config.runtime.processes) == ProcessChoice::kOne) {
    throw_config_error(
        "runtime.processes = \"one\", but {} started {}; start one, or set runtime.processes = "
        "\"auto\"",
        launch.launcher, launch.num_processes);
  }
  const std::string reason = why_not_per_rank(config);
  if (!reason.empty()) {
    throw_config_error("{} has started {} processes, and {}", launch.launcher, launch.num_processes,
                       reason);
  }
}

int64_t longest_silence_s(const RunConfig& config) {
  constexpr int64_t kLongestSilenceS = 10;
  return std::min(kLongestSilenceS, config.runtime.timeout_s);
}

std::unique_ptr<ProcessGroup> connect_processes(const Launch& launch, const RunConfig& config) {
  constexpr int64_t kNsPerSecond = 1'000'000'000;
  check_secret(launch);
  return make_tcp_rendezvous({.num_processes = launch.num_processes,
                              .process = launch.process,
                              .address = {launch.host, launch.port},
                              .listener = Socket(launch.listener),
                              .run = launch.job,
                              .build = build_id(),
                              .secret = launch.secret,
                              .timeout_ns = config.runtime.timeout_s * kNsPerSecond,
                              .silence_ns = longest_silence_s(config) * kNsPerSecond});
}

}  // namespace braid
