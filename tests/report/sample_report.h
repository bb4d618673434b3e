#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "report/expert_loads.h"
#include "report/report_html.h"
#include "trace/exposed.h"
#include "trace/idle.h"
#include "trace/peer_waits.h"

namespace braid {

/// A timeline as a data-parallel run leaves it: per rank a compute stream with forward, backward
/// (dgrad and wgrad per layer), optimizer, and a communication stream that reduces the gradients of
/// each layer as soon as they are there. About `num_tasks` tasks in all.
class SampleTimeline {
 public:
  explicit SampleTimeline(int64_t num_tasks) {
    constexpr int64_t kLayers = 12;
    // Per microbatch: 4 sites, each run forward and twice backward, in each layer of both ranks.
    const int64_t num_microbatches = std::max<int64_t>(1, num_tasks / (kLayers * 4 * 3 * 2));
    for (int rank = 0; rank < 2; ++rank) {
      timeline_.ranks.push_back(make_rank(rank, num_microbatches, kLayers));
    }
    find_peer_waits(timeline_);
  }

  Timeline take() { return std::move(timeline_); }

 private:
  static constexpr uint32_t kNumSites = 4;

  RankTimeline make_rank(int rank_index, int64_t num_microbatches, int64_t num_layers) {
    RankTimeline rank;
    rank.rank = rank_index;
    rank.step = 3;
    rank.streams = {{"compute", StreamKind::kCompute, 0}, {"dp", StreamKind::kComm, 1}};
    rank.names = {"rmsnorm norm1",      "linear attention.qkv",   "attention attention",
                  "linear ffn.gate_up", "all_reduce grad.layers", "adamw optimizer"};
    rank.ops = {{"rmsnorm", 1e6, 3e7}, {"linear", 9e9, 2e8}, {"attention", 4e9, 5e7},
                {"linear", 2e10, 4e8}, {"all_reduce", 0, 0}, {"adamw", 1e7, 2e8}};
    rank.device = {.name = "NVIDIA H200", .flops_per_s = 989.4e12, .bytes_per_s = 4.8e12};
    rank.kernel_names = {"braid::rows<float, 4>", "fill",
                         "ncclDevKernel_AllReduce_Sum_f32_RING_LL"};
    now_ns_ = 20'000 + 15'000 * rank_index;
    comm_end_ns_ = 0;
    num_calls_ = 0;
    rank.sequences = {{.name = "data of ranks 0, 1", .ranks = {0, 1}}};
    for (int64_t microbatch = 0; microbatch < num_microbatches; ++microbatch) {
      const bool last = microbatch + 1 == num_microbatches;
      for (int64_t layer = 0; layer < num_layers; ++layer) {
        add_layer(rank, Phase::kForward, microbatch, layer);
      }
      for (int64_t layer = num_layers - 1; layer >= 0; --layer) {
        add_layer(rank, Phase::kDgrad, microbatch, layer);
        add_layer(rank, Phase::kWgrad, microbatch, layer);
        if (last) {
          add_all_reduce(rank, layer);
        }
      }
    }
    now_ns_ = std::max(now_ns_, comm_end_ns_) + 4'000;
    for (int64_t layer = 0; layer < num_layers; ++layer) {
      add_compute(
          rank,
          {.phase = Phase::kOptimizer, .layer = static_cast<int32_t>(layer), .name = kNumSites + 1},
          60'000);
    }
    add_kernels(rank);
    return rank;
  }

  /// Two kernels with a pause in each task, and before the first a fill that belongs to none.
  static void add_kernels(RankTimeline& rank) {
    rank.kernels.push_back({TimelineKernel::kNoTask, 1, 0, 9'000});
    for (size_t i = 0; i < rank.tasks.size(); ++i) {
      const TimelineTask& task = rank.tasks[i];
      const int64_t pause_ns = task.start_ns + (task.end_ns - task.start_ns) / 3;
      const uint32_t name = task.communication ? 2 : 0;
      rank.kernels.push_back({static_cast<uint32_t>(i), name, task.start_ns, pause_ns});
      rank.kernels.push_back({static_cast<uint32_t>(i), name, pause_ns + 400, task.end_ns});
    }
    std::sort(rank.kernels.begin(), rank.kernels.end(),
              [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; });
    rank.remark = "work of no task: 1 kernel (9.0 us)";
  }

  void add_layer(RankTimeline& rank, Phase phase, int64_t microbatch, int64_t layer) {
    constexpr int64_t kDurationNs[kNumSites] = {18'000, 140'000, 190'000, 260'000};
    for (uint32_t i = 0; i < kNumSites; ++i) {
      const uint32_t site = phase == Phase::kForward ? i : kNumSites - 1 - i;
      add_compute(rank,
                  {.phase = phase,
                   .microbatch = static_cast<int32_t>(microbatch),
                   .virtual_stage = 0,
                   .layer = static_cast<int32_t>(layer),
                   .name = site},
                  kDurationNs[site]);
    }
  }

  void add_compute(RankTimeline& rank, TimelineTask task, int64_t usual_ns) {
    task.start_ns = now_ns_ + 300;
    task.end_ns = task.start_ns + usual_ns + usual_ns * static_cast<int64_t>(random_() % 20) / 100;
    task.op = task.name;
    now_ns_ = task.end_ns;
    rank.tasks.push_back(task);
  }

  void add_all_reduce(RankTimeline& rank, int64_t layer) {
    TimelineTask task{.stream = 1,
                      .phase = Phase::kComm,
                      .layer = static_cast<int32_t>(layer),
                      .name = kNumSites,
                      .bytes = 7'077'888,
                      .group = GroupKind::kData,
                      .communication = true,
                      .op = kNumSites,
                      .sequence = 0,
                      .call = num_calls_++};
    task.start_ns = std::max(comm_end_ns_, now_ns_) + 2'000;
    task.end_ns = task.start_ns + 900'000;
    comm_end_ns_ = task.end_ns;
    rank.tasks.push_back(task);
  }

  Timeline timeline_{"cuda, CUPTI", {}};
  std::mt19937 random_{7};
  int64_t now_ns_ = 0;
  int64_t comm_end_ns_ = 0;
  uint32_t num_calls_ = 0;  // of the rank
};

inline void add_sample_metrics(ReportInput& input, int64_t num_steps) {
  std::mt19937 random(3);
  const auto noise = [&] { return static_cast<double>(random() % 2001) / 1000.0 - 1.0; };
  input.evaluations.push_back({0, 9.02});
  for (int64_t step = 1; step <= num_steps; ++step) {
    const auto t = static_cast<double>(step);
    const double loss = 3.1 + 5.9 * std::exp(-t / 60) + 1.2 * std::exp(-t / 300);
    const double step_ms = 172 + 6 * noise() + (step % 97 == 0 ? 90 : 0);
    input.steps.push_back({.step = step,
                           .loss = loss + 0.12 * noise(),
                           .learning_rate = 1e-3,
                           .grad_norm = 1 + 0.3 * noise(),
                           .step_ms = step_ms,
                           .tokens_per_s = 4096e3 / step_ms,
                           .tflops_per_s_per_rank = 20.0 / step_ms,
                           .consumed_samples = 16 * step,
                           .consumed_tokens = 4096 * step});
    if (step % 50 == 0) {
      input.evaluations.push_back({step, loss + 0.15});
    }
  }
  input.unigram_entropy = 6.31;
}

inline void add_sample_plan(ReportInput& input) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const auto pass = [](const char* name, bool skipped, int64_t changes, const char* summary) {
    return PassRecord{name, skipped, 180'000 + 40'000 * changes, {changes > 0, changes, summary}};
  };
  input.passes = {pass("remove_identities", false, 0, "no identity in the program"),
                  pass("overlap_grad_reduce", false, 12, "moved 12 of 12 all-reduces"),
                  pass("assign_streams", false, 12, "12 tasks on stream dp"),
                  pass("split_ops", true, 0, "disabled by overlap.disable_passes"),
                  pass("insert_events", false, 24, "24 events, 9 redundant waits removed")};
  input.memory.persistent_by_role = {{BufferRole::kParam, 38 * kMiB},
                                     {BufferRole::kMainGrad, 38 * kMiB},
                                     {BufferRole::kOptimizerState, 76 * kMiB},
                                     {BufferRole::kIo, kMiB / 16}};
  input.memory.persistent_bytes = 152 * kMiB + kMiB / 16;
  StepPlan step;
  step.max_live_bytes = 118 * kMiB;
  step.arena_bytes = 120 * kMiB;
  step.peak_by_role = {{BufferRole::kActivation, 104 * kMiB},
                       {BufferRole::kGrad, 8 * kMiB},
                       {BufferRole::kScratch, 6 * kMiB}};
  input.memory.programs = {step};
  input.memory.step_bytes = step.arena_bytes;
}

inline void add_sample_layout(ReportInput& input) {
  input.layout =
      "layout    2 ranks = tensor 1 x context 1 x data 1 x pipeline 2\n"
      "pipeline  Et*6|t*6L, 1f1b of 8 microbatches\n";
  input.stages = {{"rank", "stage", "parameters", "peak"},
                  {{"0", "0", "5.1M", "270 MiB"}, {"1", "1", "4.9M", "240 MiB"}}};
  const ScheduleOptions schedule{.num_ranks = 2, .num_microbatches = 8};
  input.jobs = time_schedules(schedule, make_schedules(schedule));
}

/// Activations that pile up over the forward and go over the backward.
inline void add_sample_memory(ReportInput& input) {
  constexpr int64_t kPoints = 400;
  for (const RankTimeline& rank : input.timeline.ranks) {
    MemoryCurve curve{.rank = rank.rank,
                      .persistent_bytes = input.memory.persistent_bytes,
                      .step_bytes = input.memory.step_bytes};
    const int64_t end_ns = rank.tasks.empty() ? kPoints : rank.tasks.back().end_ns;
    for (int64_t i = 0; i < kPoints; ++i) {
      const int64_t height = std::min(i % 40, 40 - i % 40);
      curve.time_ns.push_back(end_ns * i / kPoints);
      for (std::vector<int64_t>& bytes : curve.live_bytes) {
        bytes.push_back(0);
      }
      curve.live_bytes[static_cast<size_t>(BufferRole::kActivation)].back() = height * 5'200'000;
      curve.live_bytes[static_cast<size_t>(BufferRole::kGrad)].back() = i % 40 > 20 ? 8'000'000 : 0;
      curve.high_bytes =
          std::max(curve.high_bytes, height * 5'200'000 + (i % 40 > 20 ? 8'000'000 : 0));
    }
    input.memory_over_time.push_back(std::move(curve));
  }
}

/// 12 layers of 64 experts whose loads become more equal, and one of which nobody chooses any more.
inline void add_sample_experts(ReportInput& input, int64_t num_steps) {
  std::mt19937 random(5);
  for (int64_t step = 10; step <= num_steps; step += 10) {
    const double spread = 0.3 + 1.5 * std::exp(-static_cast<double>(step) / 150);
    for (int64_t layer = 0; layer < 12; ++layer) {
      std::vector<int64_t> rows(64);
      for (int64_t& count : rows) {
        const double noise = static_cast<double>(random() % 2001) / 1000.0 - 1.0;
        count = std::llround(512 * std::exp(spread * noise));
      }
      rows[static_cast<size_t>(5 * layer)] = layer == 7 ? 0 : rows[static_cast<size_t>(5 * layer)];
      ExpertRecord record = load_record(rows);
      record.step = step;
      record.layer = fmt::format("layers.{}", layer);
      record.balance_loss = 1 + 0.1 * spread;
      record.sequence_balance_loss = 1 + 0.2 * spread;
      record.z_loss = 12.5;
      if (step % 50 != 0) {
        record.counts.clear();
      }
      input.experts.push_back(std::move(record));
    }
  }
}

/// Times of one rank, or the sum of several, as an object of simulation_json without its braces.
inline std::string sample_times(const std::vector<RankTimes>& ranks,
                                const std::vector<IdleTimes>& idle) {
  int64_t sums[8] = {};
  for (size_t i = 0; i < ranks.size(); ++i) {
    const CommunicationTime& data = ranks[i].by_group[static_cast<size_t>(GroupKind::kData)];
    const int64_t values[8] = {ranks[i].compute_ns, ranks[i].communication.exposed_ns,
                               ranks[i].bubble_ns,  idle[i].warmup_ns,
                               idle[i].steady_ns,   idle[i].cooldown_ns,
                               data.total_ns,       data.exposed_ns};
    for (size_t k = 0; k < 8; ++k) {
      sums[k] += values[k];
    }
  }
  const auto mean = [&](size_t k) {
    return static_cast<double>(sums[k]) / static_cast<double>(ranks.size());
  };
  return fmt::format(
      R"("compute_ns": {}, "exposed_ns": {}, "copy_ns": 0, "idle_ns": {}, "warmup_ns": {}, )"
      R"("steady_ns": {}, "cooldown_ns": {}, "communication": {{"data": {{"total_ns": {}, )"
      R"("exposed_ns": {}}}}})",
      mean(0), mean(1), mean(2), mean(3), mean(4), mean(5), mean(6), mean(7));
}

/// Makes a sample one of a simulated step of 1,024 ranks, of which it shows two.
inline void simulate_sample(ReportInput& input) {
  constexpr int64_t kHostNs = 90'000;
  input.steps.clear();
  input.evaluations.clear();
  input.experts.clear();
  input.timeline.source = "sim";
  const int64_t step_ns = step_time_ns(input.timeline);
  std::vector<RankTimes> times;
  std::vector<IdleTimes> idle;
  std::string stages;
  for (RankTimeline& rank : input.timeline.ranks) {
    rank.kernels.clear();
    rank.remark.clear();
    times.push_back(analyze_rank(rank, step_ns));
    idle.push_back(analyze_idle(rank, step_ns));
    stages += fmt::format(R"({}{{"rank": {}, {}, "peak_bytes": {}, "peak_rank": {}}})",
                          stages.empty() ? "" : ", ", rank.rank,
                          sample_times({times.back()}, {idle.back()}),
                          input.memory.persistent_bytes + input.memory.step_bytes, rank.rank);
  }
  input.simulation = fmt::format(
      R"({{"cost": "h200x1024, analytic: H200 </script>", "ranks": 1024, "distinct_ranks": 2, )"
      R"("simulated_tasks": 4000, "global_batch": 4096, "step_ns": {}, "host_ns": {}, )"
      R"("tokens_per_s": 1.5e6, "tokens_per_s_per_rank": 1465, "flops_per_s_per_rank": 4.9e14, )"
      R"("mfu": 0.497, "mean": {{{}}}, "busiest_rank": 0, "device_bytes": 151397597184, )"
      R"("range": {{"low_ns": {}, "high_ns": {}}}, "critical_path": {{"step_ns": {}, )"
      R"("tasks": 2, "moves": 1, "parts": [{{"cause": "matrix products", "ns": {}, "stage_ns": )"
      R"([{}, 0], "gain_ns": 900}}, {{"cause": "host", "ns": {}, "stage_ns": [0, {}]}}], )"
      R"("stretches": [{{"end_ns": {}, "stage": 0, "cause": "matrix products"}}, )"
      R"({{"end_ns": {}, "stage": 1, "cause": "host"}}]}}, "gains": {{"step_ns": {}, "changes": )"
      R"([{{"kind": "layout", "what": "mb2 instead of mb1", "step_ns": 2000, )"
      R"("needed_bytes": 0}}]}}, "stages": [{}]}})",
      step_ns + kHostNs, kHostNs, sample_times(times, idle), step_ns, step_ns + 2 * kHostNs,
      step_ns + kHostNs, step_ns, step_ns, kHostNs, kHostNs, step_ns, step_ns + kHostNs,
      step_ns + kHostNs, stages);
}

/// A report with every part, as a run on two ranks leaves it.
inline ReportInput sample_report(int64_t num_tasks = 600, int64_t num_steps = 700) {
  ReportInput input;
  input.title = "jargon-llama";
  input.model = "llama, 12 layers, width 384, 9.96M parameters";
  input.config_toml =
      "[model]\nfamily = \"llama\"\nlayers = 12\nwidth = 384\n\n[train]\nsequence = 256\n"
      "global_batch = 16\nsteps = 700\n\n[parallel]\nranks = 2\ndata = 2\n\n[overlap]\n"
      "mode = \"auto\"\noverlap_grad_reduce = true\n";
  add_sample_metrics(input, num_steps);
  add_sample_experts(input, num_steps);
  add_sample_plan(input);
  add_sample_layout(input);
  input.timeline = SampleTimeline(num_tasks).take();
  add_sample_memory(input);
  return input;
}

}  // namespace braid
