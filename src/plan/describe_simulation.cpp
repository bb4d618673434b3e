#include "plan/describe_simulation.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "plan/describe_layout.h"
#include "sim/scaled_product.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNsPerS = 1e9;

std::string duration(double ns) {
  return format_duration(ns / kNsPerS);
}

double percent_of(double ns, double step_ns) {
  return step_ns > 0 ? 100.0 * ns / step_ns : 0.0;
}

/// "exposed   9.6%: tensor 8.1% (of 8.9%), ...".
std::string exposed_line(const SimulatedMeans& means, double step_ns) {
  std::vector<std::string> kinds;
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    if (means.communication_ns[kind] > 0) {
      kinds.push_back(fmt::format("{} {:.1f}% (of {:.1f}%)",
                                  group_kind_name(static_cast<GroupKind>(kind)),
                                  percent_of(means.exposed_ns[kind], step_ns),
                                  percent_of(means.communication_ns[kind], step_ns)));
    }
  }
  return kinds.empty() ? ""
                       : fmt::format(
                             "exposed   {:.1f}% of the step with communication that "
                             "nothing hides: {}\n",
                             percent_of(means.all_exposed_ns, step_ns), join(kinds, ", "));
}

std::string idle_line(const SimulatedMeans& means, double step_ns, bool has_pipeline) {
  const std::string total = fmt::format("{:.1f}%", percent_of(means.idle_ns(), step_ns));
  if (!has_pipeline) {
    return fmt::format("idle      {}\n", total);
  }
  return fmt::format("bubble    {} idle: warm-up {:.1f}%, steady {:.1f}%, cool-down {:.1f}%\n",
                     total, percent_of(means.warmup_ns, step_ns),
                     percent_of(means.steady_ns, step_ns), percent_of(means.cooldown_ns, step_ns));
}

/// Times of the busiest rank of a stage, and its memory.
struct StageLine {
  const SimulatedRank* rank = nullptr;
  StageMemory memory;
};

std::vector<StageLine> stage_lines(const SimulatedRun& run) {
  std::vector<StageLine> lines;
  for (const StageMemory& memory : run.memory_by_stage()) {
    lines.push_back({.rank = nullptr, .memory = memory});
  }
  for (const SimulatedRank& rank : run.ranks()) {
    StageLine& line = lines[static_cast<size_t>(rank.pipeline)];
    if (line.rank == nullptr || rank.times.bubble_ns < line.rank->times.bubble_ns) {
      line.rank = &rank;
    }
  }
  return lines;
}

std::string stage_table(const SimulatedRun& run) {
  std::string text = "stage   rank   compute   exposed      idle     memory\n";
  const std::vector<StageLine> lines = stage_lines(run);
  for (size_t stage = 0; stage < lines.size(); ++stage) {
    const RankTimes& times = lines[stage].rank->times;
    const auto step_ns = static_cast<double>(times.step_ns);
    const auto part = [&](int64_t ns) { return percent_of(static_cast<double>(ns), step_ns); };
    text += fmt::format("{:>5} {:>6} {:>8.1f}% {:>8.1f}% {:>8.1f}% {:>10}\n", stage,
                        lines[stage].rank->rank, part(times.compute_ns),
                        part(times.communication.exposed_ns), part(times.bubble_ns),
                        format_bytes(lines[stage].memory.needed_bytes));
  }
  return text;
}

std::string memory_line(const SimulatedRun& run) {
  const std::vector<StageMemory> stages = run.memory_by_stage();
  const StageMemory& most = *std::max_element(
      stages.begin(), stages.end(),
      [](const StageMemory& a, const StageMemory& b) { return a.needed_bytes < b.needed_bytes; });
  const int64_t device = run.model().cluster().device.memory_bytes;
  const std::string needed = fmt::format("{} of {} on rank {}", format_bytes(most.needed_bytes),
                                         format_bytes(device), most.rank);
  return fmt::format("memory    {}\n",
                     most.needed_bytes <= device ? needed : "does not fit: " + needed);
}

/// Products of FP8 factors of one kind on the first rank, which a device computes in one way.
struct Fp8Products {
  std::string op;
  std::string_view as;  ///< scaled_product_name
  int64_t count = 0;
  int64_t ns = 0;  ///< alone
};

std::vector<Fp8Products> fp8_products(const SimulatedRun& run) {
  const Program& program = run.plan().ranks.front().programs[kTrainProgram];
  const DeviceSpec& device = run.model().cluster().device;
  std::map<std::pair<std::string, std::string_view>, Fp8Products> found;
  for (const Task& task : program.tasks) {
    const OpSpec& spec = program.spec(task);
    const FactorScales scales = scales_of_factors(spec);
    if (scales != FactorScales::kNone) {
      const std::string_view as = scaled_product_name(device, scales);
      Fp8Products& products = found[{spec.op, as}];
      products.op = spec.op;
      products.as = as;
      ++products.count;
      products.ns += run.model().task_ns(spec);
    }
  }
  std::vector<Fp8Products> list;
  for (const auto& [key, products] : found) {
    list.push_back(products);
  }
  return list;
}

std::string fp8_lines(const SimulatedRun& run) {
  std::string text;
  for (const Fp8Products& it : fp8_products(run)) {
    text += fmt::format("fp8       {} as {}: {} on rank 0 take {}\n", it.op, it.as, it.count,
                        duration(static_cast<double>(it.ns)));
  }
  return text;
}

Json fp8_json(const SimulatedRun& run) {
  Json list = Json::array();
  for (const Fp8Products& it : fp8_products(run)) {
    list.push_back({{"op", it.op}, {"as", it.as}, {"tasks", it.count}, {"ns", it.ns}});
  }
  return list;
}

Json times_json(const SimulatedMeans& means) {
  Json communication = Json::object();
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    if (means.communication_ns[kind] > 0) {
      communication[std::string(group_kind_name(static_cast<GroupKind>(kind)))] = {
          {"total_ns", means.communication_ns[kind]},
          {"exposed_ns", means.exposed_ns[kind]},
          {"waited_ns", means.idle_before_ns[kind]}};
    }
  }
  return {{"compute_ns", means.compute_ns},   {"exposed_ns", means.all_exposed_ns},
          {"copy_ns", means.copy_ns},         {"idle_ns", means.idle_ns()},
          {"warmup_ns", means.warmup_ns},     {"steady_ns", means.steady_ns},
          {"cooldown_ns", means.cooldown_ns}, {"communication", communication}};
}

Json kinds_json(const std::array<CommunicationTime, kNumGroupKinds>& kinds) {
  Json json = Json::object();
  for (size_t kind = 0; kind < kNumGroupKinds; ++kind) {
    if (kinds.at(kind).total_ns > 0) {
      json[std::string(group_kind_name(static_cast<GroupKind>(kind)))] = {
          {"total_ns", kinds.at(kind).total_ns}, {"exposed_ns", kinds.at(kind).exposed_ns}};
    }
  }
  return json;
}

Json stages_json(const SimulatedRun& run) {
  Json stages = Json::array();
  for (const StageLine& line : stage_lines(run)) {
    const RankTimes& times = line.rank->times;
    stages.push_back({{"rank", line.rank->rank},
                      {"compute_ns", times.compute_ns},
                      {"exposed_ns", times.communication.exposed_ns},
                      {"communication", kinds_json(times.by_group)},
                      {"copy_ns", times.copy_ns},
                      {"idle_ns", times.bubble_ns},
                      {"warmup_ns", line.rank->idle.warmup_ns},
                      {"steady_ns", line.rank->idle.steady_ns},
                      {"cooldown_ns", line.rank->idle.cooldown_ns},
                      {"needed_bytes", line.memory.needed_bytes},
                      {"peak_bytes", line.memory.peak_bytes},
                      {"peak_rank", line.memory.rank}});
  }
  return stages;
}

std::string range_lines(const SimulatedRun& run, const SimulationDetails& details) {
  std::string text;
  if (details.range) {
    text += "range     " + describe_range(*details.range) + "\n";
  }
  if (details.samples) {
    const SampledSteps& it = *details.samples;
    text +=
        fmt::format("samples   median {}, 90% below {}; {} steps of different machines, seed {}\n",
                    duration(static_cast<double>(it.median_ns)),
                    duration(static_cast<double>(it.p90_ns)), it.count, it.seed);
  }
  if (details.slow) {
    const SlowStep& it = *details.slow;
    const auto step_ns = static_cast<double>(it.step_ns);
    std::vector<std::string> causes;
    if (it.parts.node != 1) {
      causes.push_back(fmt::format("compute takes {:g} times as long on one node", it.parts.node));
    }
    if (it.parts.link != 1) {
      causes.push_back(fmt::format("links of one node take {:g} times as long", it.parts.link));
    }
    text += fmt::format("slow      {} ({:+.1f}%) if {}\n", duration(step_ns),
                        100.0 * (step_ns / static_cast<double>(run.step_ns()) - 1),
                        join(causes, " and "));
  }
  return text;
}

void add_range_json(const SimulationDetails& details, Json& json) {
  if (details.range) {
    Json sources = Json::array();
    for (const RangeSource& source : details.range->sources) {
      sources.push_back(
          {{"what", source.what}, {"low_ns", source.low_ns}, {"high_ns", source.high_ns}});
    }
    json["range"] = {{"low_ns", details.range->low_ns},
                     {"high_ns", details.range->high_ns},
                     {"sources", sources}};
  }
  if (details.samples) {
    json["samples"] = {{"count", details.samples->count},
                       {"seed", details.samples->seed},
                       {"median_ns", details.samples->median_ns},
                       {"p90_ns", details.samples->p90_ns}};
  }
  if (details.slow) {
    json["slow"] = {{"node", details.slow->parts.node},
                    {"link", details.slow->parts.link},
                    {"step_ns", details.slow->step_ns}};
  }
}

}  // namespace

std::string describe_simulation(const SimulatedRun& run, const SimulationDetails& details) {
  const auto step_ns = static_cast<double>(run.result().step_ns);
  const int num_ranks = run.spec().mesh.num_ranks();
  std::string text = describe_layout(run.spec());
  text += fmt::format("cost      {}\n", run.model().description());
  text += fmt::format("simulated {} programs, {} distinct ranks, {} tasks\n",
                      run.plan().ranks.size(), run.ranks().size(),
                      format_count(static_cast<int64_t>(run.result().times.size())));
  text += fmt::format(
      "step      {}: {:.0f} tokens/s and {:.1f} TFLOP/s on each of {} ranks, MFU {:.1f}%\n",
      duration(static_cast<double>(run.step_ns())), run.tokens_per_s() / num_ranks,
      run.flops_per_s_per_rank() * 1e-12, num_ranks, 100.0 * run.mfu());
  text += range_lines(run, details);
  text += fmt::format("compute   {:.1f}% of the step, mean of all ranks\n",
                      percent_of(run.means().compute_ns, step_ns));
  text += exposed_line(run.means(), step_ns);
  if (run.means().copy_ns > 0) {
    text += fmt::format("copies    {:.1f}%\n", percent_of(run.means().copy_ns, step_ns));
  }
  text += fp8_lines(run);
  text += idle_line(run.means(), step_ns, run.spec().mesh.sizes().pipeline > 1);
  text += fmt::format("busiest   rank {}, idle {:.1f}%\n", run.busiest().rank,
                      percent_of(static_cast<double>(run.busiest().times.bubble_ns), step_ns));
  text += memory_line(run) + stage_table(run);
  text += details.path ? describe_path(*details.path) : "";
  return details.gains ? text + describe_gains(*details.gains) : text;
}

std::string simulation_json(const SimulatedRun& run, const SimulationDetails& details) {
  const int num_ranks = run.spec().mesh.num_ranks();
  Json json = {{"cost", run.model().description()},
               {"ranks", num_ranks},
               {"distinct_ranks", run.ranks().size()},
               {"simulated_tasks", run.result().times.size()},
               {"global_batch", run.spec().config.train.global_batch},
               {"step_ns", run.step_ns()},
               {"host_ns", run.model().step_overhead_ns()},
               {"tokens_per_s", run.tokens_per_s()},
               {"tokens_per_s_per_rank", run.tokens_per_s() / num_ranks},
               {"flops_per_s_per_rank", run.flops_per_s_per_rank()},
               {"mfu", run.mfu()},
               {"mean", times_json(run.means())},
               {"busiest_rank", run.busiest().rank},
               {"device_bytes", run.model().cluster().device.memory_bytes},
               {"stages", stages_json(run)}};
  if (run.spec().fp8) {
    json["fp8"] = fp8_json(run);
  }
  add_range_json(details, json);
  if (const std::optional<SkewedStep>& skewed = details.skewed) {
    json["skewed"] = {{"source", skewed->loads.source},
                      {"busiest_rank_load", skewed->loads.busiest},
                      {"worst_layer_load", skewed->loads.worst},
                      {"step_ns", skewed->step_ns}};
  }
  if (details.goodput) {
    json["goodput"] = goodput_json(*details.goodput);
  }
  if (details.path) {
    json["critical_path"] = path_json(*details.path);
  }
  if (details.gains) {
    json["gains"] = gains_json(*details.gains);
  }
  return json.dump(2) + "\n";
}

}  // namespace braid
