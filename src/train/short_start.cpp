#include "train/short_start.h"

#include <fmt/format.h>

#include <utility>

#include "base/text.h"
#include "model/families.h"
#include "model/model_spec.h"

namespace braid {
namespace {

constexpr size_t kColumns = 80;

/// "4 ranks (tensor 2, data 2)".
std::string describe_ranks(const ParallelConfig& parallel) {
  std::string dimensions;
  for (const auto& [name, size] : {std::pair{"tensor", parallel.tensor},
                                   {"pipeline", parallel.pipeline},
                                   {"context", parallel.context},
                                   {"data", parallel.data},
                                   {"expert", parallel.expert}}) {
    if (size > 1) {
      dimensions += fmt::format("{}{} {}", dimensions.empty() ? "" : ", ", name, size);
    }
  }
  return parallel.ranks == 1 ? "1 rank" : fmt::format("{} ranks ({})", parallel.ranks, dimensions);
}

std::string cut(std::string line) {
  if (line.size() > kColumns) {
    line.replace(kColumns - 3, std::string::npos, "...");
  }
  return line;
}

}  // namespace

std::string short_start(const RunPlan& plan, const Device& device, double setup_seconds) {
  const RunSpec& run = plan.run;
  const RunConfig& config = run.config;
  return cut(fmt::format("model    {}, {} layers, {} parameters; {}, {}",
                         family_name(run.model.style), run.model.layers.size(),
                         format_count(num_parameters(run.model)), device.backend->name,
                         describe_ranks(config.parallel))) +
         "\n" +
         cut(fmt::format("step     {} tokens: {} sequences of {} in {} microbatch{}; {} per rank",
                         format_count(run.tokens_per_step()), config.train.global_batch,
                         config.train.sequence, run.num_microbatches,
                         run.num_microbatches == 1 ? "" : "es",
                         format_bytes(plan.ranks.front().memory.peak_bytes()))) +
         "\n" +
         cut(fmt::format("run      {} (config.toml, {}); set up in {}", config.logging.run_folder,
                         kPlanFile, format_duration(setup_seconds)));
}

}  // namespace braid
