// What braid chooses to overlap against the best that its keys can ask for: named layouts on
// simulated H200 nodes, each with overlap off, with the defaults of all passes, with the best of a
// wide search over the keys of mode = "manual", and with mode = "auto" and its search.
//   braid_bench_auto_overlap [--exact] [--search] [NAME ...]
//                default: all layouts; --exact: no rounding; --search: only what the search finds

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/validate.h"
#include "plan/schedule_plan.h"
#include "sim/measured_model.h"
#include "tune/auto_overlap.h"
#include "tune/overlap_axes.h"

namespace braid {
namespace {

struct Case {
  const char* name;
  const char* cluster;
  const char* keys;  // of the run file, as for --set
};

constexpr const char* kCommon =
    "train.dtype=bfloat16 train.sequence=8192 train.microbatch=1 logging.run_folder=unused";

constexpr Case kCases[] = {
    {"llama-8b dp8 optimizer", "h200x8",
     "model.preset=llama-8b parallel.ranks=8 parallel.shard=optimizer train.global_batch=16"},
    {"llama-8b dp8 parameters", "h200x8",
     "model.preset=llama-8b parallel.ranks=8 parallel.shard=parameters train.global_batch=16"},
    {"llama-8b pp4 1f1b", "h200x8",
     "model.preset=llama-8b parallel.ranks=4 parallel.pipeline=4 train.global_batch=8 "
     "memory.recompute=norms"},
    {"llama-8b pp8 v4", "h200x8",
     "model.preset=llama-8b parallel.ranks=8 parallel.pipeline=8 parallel.virtual_stages=4 "
     "parallel.schedule=interleaved train.global_batch=32"},
    {"llama-8b pp4 dp2", "h200x8",
     "model.preset=llama-8b parallel.ranks=8 parallel.pipeline=4 parallel.data=2 "
     "parallel.shard=optimizer train.global_batch=16"},
    {"gpt3-6.7b tp2 pp4", "h200x8",
     "model.family=gpt2 model.layers=32 model.width=4096 model.heads=32 model.vocabulary=50304 "
     "train.sequence=1024 parallel.ranks=8 parallel.tensor=2 parallel.pipeline=4 "
     "train.global_batch=16"},
    {"gpt3-175b tp4 pp8 v6", "h200x64",
     "model.family=gpt2 model.layers=96 model.width=12288 model.heads=96 "
     "model.vocabulary=51200 train.sequence=2048 parallel.ranks=64 parallel.tensor=4 "
     "parallel.sequence_parallel=true parallel.pipeline=8 parallel.virtual_stages=6 "
     "parallel.schedule=interleaved parallel.shard=optimizer train.global_batch=128"},
    {"llama-70b tp4 pp4 cp2 v5", "h200x64",
     "model.preset=llama-70b parallel.ranks=64 parallel.tensor=4 parallel.sequence_parallel=true "
     "parallel.pipeline=4 parallel.context=2 parallel.virtual_stages=5 "
     "parallel.schedule=interleaved parallel.shard=optimizer train.global_batch=32"},
    {"llama-70b tp8 dp8", "h200x64",
     "model.preset=llama-70b parallel.ranks=64 parallel.tensor=8 parallel.sequence_parallel=true "
     "parallel.shard=optimizer memory.recompute=norms train.global_batch=32"},
    {"llama-8b tp8", "h200x8",
     "model.preset=llama-8b parallel.ranks=8 parallel.tensor=8 parallel.sequence_parallel=true "
     "memory.recompute=norms train.microbatch=2 train.global_batch=8"},
    {"llama-8b cp8 64k", "h200x8",
     "model.preset=llama-8b train.sequence=65536 parallel.ranks=8 parallel.context=8 "
     "parallel.shard=parameters memory.recompute=norms train.global_batch=4"},
    {"llama-405b tp8 cp2 pp8 v8", "h200x512",
     "model.preset=llama-405b parallel.ranks=512 parallel.tensor=8 "
     "parallel.sequence_parallel=true parallel.context=2 parallel.pipeline=8 "
     "parallel.virtual_stages=8 parallel.schedule=interleaved parallel.account_for_embedding=true "
     "parallel.account_for_loss=true parallel.shard=optimizer memory.recompute=norms "
     "train.global_batch=64"},
};

RunConfig config_of(const Case& one, bool exact) {
  std::vector<std::string> overrides;
  for (const std::string& keys : {std::string(kCommon), std::string(one.keys)}) {
    size_t begin = 0;
    while (begin < keys.size()) {
      const size_t end = std::min(keys.find(' ', begin), keys.size());
      overrides.push_back(keys.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  overrides.push_back(fmt::format("overlap.cost={}", one.cluster));
  overrides.push_back(fmt::format("overlap.may_change_rounding={}", !exact));
  RunConfig config = parse_config("", "bench", overrides);
  validate(config);
  return resolved(std::move(config));
}

double seconds(const OverlapFigures& figures) {
  return static_cast<double>(figures.step_ns) * 1e-9;
}

/// Settings at random over all axes of the keys that people set, besides those that a search went
/// through.
constexpr int kRandomSettings = 24;

std::vector<OverlapConfig> random_settings(const RunConfig& config, int64_t num_microbatches) {
  const std::vector<OverlapAxis> axes = overlap_axes(
      config, {.layers_of_job = 8, .num_microbatches = num_microbatches, .copy_engines = true});
  std::mt19937 random(1);
  std::vector<OverlapConfig> settings;
  for (int i = 0; i < kRandomSettings; ++i) {
    OverlapConfig overlap = manual_defaults(config);
    for (const OverlapAxis& axis : axes) {
      if (random() % 2 == 0) {
        axis.choices[random() % axis.choices.size()](overlap);
      }
    }
    settings.push_back(overlap);
  }
  return settings;
}

struct Manual {
  OverlapTrial best;
  size_t tried = 0;
};

/// The best that the keys of mode = "manual" can ask for without what a simulation of the whole
/// step decides (`is_scheduled`): of the coordinate descent over them all, which is the first part
/// of the search that `found` comes from, and of random settings.
Manual best_manual(const RunConfig& config, const CostModel& model, const AutoOverlap& found) {
  RunConfig searched = config;
  searched.train.global_batch =
      config.train.global_batch / found.num_microbatches * found.searched_microbatches;
  const OverlapTrials::Options options{.memory_bytes = device_memory_bytes(model), .on_trial = {}};
  OverlapTrials random(resolve_run(searched, 0), model, options);
  random.run(random_settings(config, found.num_microbatches));
  std::vector<OverlapTrial> all(random.all().begin(), random.all().end());
  for (const OverlapTrial& trial : found.trials) {
    if (trial.overlap.mode == "manual" && !is_scheduled(trial.overlap)) {
      all.push_back(trial);
    }
  }
  std::ranges::stable_sort(all, is_better);
  OverlapTrials whole(resolve_run(config, 0), model, options);
  std::vector<OverlapConfig> finalists;
  for (size_t i = 0; i < std::min<size_t>(3, all.size()); ++i) {
    finalists.push_back(all[i].overlap);
  }
  const std::vector<const OverlapTrial*> made = whole.run(finalists);
  return {
      .best = **std::min_element(made.begin(), made.end(),
                                 [](const auto* a, const auto* b) { return is_better(*a, *b); }),
      .tried = all.size()};
}

std::string figures(const OverlapFigures& one) {
  return fmt::format("{:.4g} s, {:.1f}%, {:.1f} GiB", seconds(one), 100 * one.exposed,
                     static_cast<double>(one.needed_bytes) / (1 << 30));
}

struct Options {
  bool exact = false;        // rounding must not change
  bool only_search = false;  // without the best manual setting, which takes longer to find
};

void measure(const Case& one, const Options& options) {
  const RunConfig config = config_of(one, options.exact);
  const auto model = load_cost_model(one.cluster, static_cast<int>(config.parallel.ranks));
  const auto begin = std::chrono::steady_clock::now();
  const AutoOverlap found = auto_overlap(resolve_run(config, 0), *model);
  const double search_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (options.only_search) {
    fmt::print("| {} | {} | {} | | {} | | | {} in {:.1f} s |\n", one.name, figures(found.off),
               figures(found.defaults), figures(found.chosen), found.trials.size(), search_s);
    fmt::print("{}", describe(found));
    std::fflush(stdout);
    return;
  }
  const Manual manual = best_manual(config, *model, found);
  fmt::print("| {} | {} | {} | {} ({}) | {} | {:.1f}% | {:.1f}% | {} in {:.1f} s |\n", one.name,
             figures(found.off), figures(found.defaults), figures(manual.best.figures),
             manual.tried, figures(found.chosen),
             100 * (seconds(manual.best.figures) / seconds(found.chosen) - 1),
             100 * manual.best.figures.most_compute, found.trials.size(), search_s);
  fmt::print("{}", describe(found));
  std::fflush(stdout);
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  std::vector<std::string> names(argv + 1, argv + argc);
  const braid::Options options{.exact = std::erase(names, "--exact") > 0,
                               .only_search = std::erase(names, "--search") > 0};
  try {
    fmt::print("| layout | off | defaults | best manual | auto | gain | busiest | search |\n");
    for (const braid::Case& one : braid::kCases) {
      if (names.empty() || std::ranges::count(names, one.name) > 0) {
        braid::measure(one, options);
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
