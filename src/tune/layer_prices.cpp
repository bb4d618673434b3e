#include "tune/layer_prices.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "config/validate.h"
#include "model/mtp.h"
#include "plan/memory_needs.h"
#include "plan/model_setup.h"
#include "plan/simulated_run.h"

namespace braid {
namespace {

/// Everything that is measured of a model with few layers.
struct Sample {
  PartPrice whole;
  double layer_wgrad_ns = 0;  ///< of its last layer
  double layer_peak_bytes = 0;
  double peak_bytes = 0;
  double other_bytes = 0;
};

/// Without the keys about messages between stages, which `validate` refuses for one stage.
OverlapConfig without_messages(OverlapConfig overlap) {
  const OverlapConfig defaults;
  overlap.overlap_p2p_comm = defaults.overlap_p2p_comm;
  overlap.overlap_p2p_comm_warmup_flush = defaults.overlap_p2p_comm_warmup_flush;
  overlap.overlap_p2p_backward_on_comm_stream = defaults.overlap_p2p_backward_on_comm_stream;
  overlap.overlap_p2p_wgrad_delayed_layer_number = defaults.overlap_p2p_wgrad_delayed_layer_number;
  overlap.overlap_p2p_with_transformer_layer_wgrad =
      defaults.overlap_p2p_with_transformer_layer_wgrad;
  overlap.defer_embedding_wgrad_compute = defaults.defer_embedding_wgrad_compute;
  overlap.wgrad_deferral_limit = defaults.wgrad_deferral_limit;
  overlap.fill_cooldown = defaults.fill_cooldown;
  return overlap;
}

/// The fewest data ranks that together with the tensor and context ranks hold all experts.
int64_t exchanging_data_ranks(const Layout& layout, int64_t expert_tensor) {
  const int64_t exchanging = layout.expert * expert_tensor;
  return exchanging / std::gcd(exchanging, layout.tensor * layout.context);
}

/// Without what only layers with experts permit.
void remove_experts(RunConfig& config, Layout& layout) {
  layout.expert = config.parallel.expert_tensor = 1;
  config.moe = MoeConfig();
  config.train.fp8_experts = config.train.fp8_dispatch = false;
}

/// On `priced_ranks`.
RunConfig small_run(RunConfig config, Layout layout, const LayerPattern& layers) {
  if (!layers.has(kMoeBlock)) {
    remove_experts(config, layout);
  }
  config = with_layout(std::move(config), layout);
  config.model = with_layers(std::move(config.model), layers);
  config.train.global_batch = kPricedMicrobatches * layout.microbatch * layout.data;
  config.parallel.pipeline_layout.clear();
  config.parallel.first_stage_layers = config.parallel.last_stage_layers = 0;
  config.memory.recompute_layers = config.memory.offload_layers = 0;
  config.memory.offload_prefetch_layers = MemoryConfig().offload_prefetch_layers;
  config.memory.offload_min_bytes = MemoryConfig().offload_min_bytes;
  config.overlap = without_messages(std::move(config.overlap));
  validate(config);
  return resolved(std::move(config));
}

bool is_backward(Phase phase) {
  return phase == Phase::kDgrad || phase == Phase::kWgrad;
}

/// Times of the first microbatch and of the optimizer.
void add_times(const Program& program, std::span<const TaskTimes> times, Sample& sample) {
  int64_t forward_end = 0;
  int64_t backward_end = 0;
  int32_t last_layer = 0;
  for (const Task& task : program.tasks) {
    last_layer = std::max(last_layer, task.label.layer);
  }
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Label& label = program.tasks[i].label;
    const auto ns = static_cast<double>(times[i].end_ns - times[i].start_ns);
    if (label.phase == Phase::kOptimizer) {
      sample.whole.update_ns += ns;
    } else if (label.microbatch == 0 && label.phase == Phase::kForward) {
      forward_end = std::max(forward_end, times[i].end_ns);
    } else if (label.microbatch == 0 && is_backward(label.phase)) {
      backward_end = std::max(backward_end, times[i].end_ns);
      const double wgrad_ns = label.phase == Phase::kWgrad ? ns : 0;
      sample.whole.wgrad_ns += wgrad_ns;
      sample.layer_wgrad_ns += label.layer == last_layer ? wgrad_ns : 0;
    }
  }
  sample.whole.forward_ns = static_cast<double>(forward_end);
  sample.whole.backward_ns = static_cast<double>(backward_end - forward_end);
}

bool is_activation(const Buffer& buffer) {
  return buffer.role == BufferRole::kActivation && buffer.lifetime == Lifetime::kStep &&
         buffer.placement == Placement::kDevice;
}

/// Adds the activations that wgrad tasks of the first microbatch read and that other tasks made.
/// `first` is the first task that uses each buffer.
void add_wgrad_bytes(const Program& program, std::span<const size_t> first, Sample& sample) {
  std::vector<bool> counted(program.buffers.size(), false);
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    if (task.label.phase != Phase::kWgrad || task.label.microbatch != 0) {
      continue;
    }
    for (const BufferRange& range : program.operands_of(task)) {
      const size_t index = range.buffer.index();
      const Buffer& buffer = program.buffers[index];
      const bool is_read = is_activation(buffer) &&
                           program.tasks[first[index]].label.phase != Phase::kWgrad &&
                           !counted[index];
      counted[index] = counted[index] || is_read;
      sample.whole.wgrad_bytes += is_read ? static_cast<double>(buffer.size_bytes()) : 0;
    }
  }
}

/// Activations of the first microbatch, by first and last use in the order of the program.
void add_memory(const Program& program, Sample& sample) {
  constexpr size_t kNever = std::numeric_limits<size_t>::max();
  std::vector<size_t> first(program.buffers.size(), kNever);
  std::vector<size_t> last(program.buffers.size(), 0);
  size_t backward_begin = kNever;
  size_t end = 0;  // of the first microbatch
  for (size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    const bool is_first_microbatch = task.label.microbatch == 0;
    backward_begin = is_first_microbatch && is_backward(task.label.phase)
                         ? std::min(backward_begin, i)
                         : backward_begin;
    end = is_first_microbatch ? i + 1 : end;
    for (const BufferRange& range : program.operands_of(task)) {
      first[range.buffer.index()] = std::min(first[range.buffer.index()], i);
      last[range.buffer.index()] = i;
    }
  }
  add_wgrad_bytes(program, first, sample);
  std::vector<int64_t> change(end + 1, 0);  // of live bytes in front of a task
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    if (is_activation(program.buffers[i]) && first[i] < end) {
      const int64_t bytes = program.buffers[i].size_bytes();
      change[first[i]] += bytes;
      change[std::min(last[i] + 1, end)] -= bytes;
      sample.whole.kept_bytes +=
          first[i] < backward_begin && last[i] >= backward_begin ? static_cast<double>(bytes) : 0;
    }
  }
  int64_t live = 0;
  for (size_t i = 0; i < end; ++i) {
    live += change[i];
    const auto bytes = static_cast<double>(live);
    sample.peak_bytes = std::max(sample.peak_bytes, bytes);
    if (program.tasks[i].label.layer >= 0) {
      sample.layer_peak_bytes = std::max(sample.layer_peak_bytes, bytes);
    }
  }
}

Sample take_sample(const RunSpec& small, const CostModel& model) {
  const SimulatedRun run(small, model, {}, PlannedRanks::kOnePerStage);
  const RankPlan& rank = run.plan().ranks.front();
  const Program& program = rank.programs[kTrainProgram];
  Sample sample;
  add_times(program, times_of(run.rank_programs(), run.result(), run.result().ranks.front()),
            sample);
  add_memory(program, sample);
  for (const ParameterUnit& unit : rank.layout.units) {
    const auto elems = static_cast<double>(unit.num_elems);
    sample.whole.parameters += elems;
    sample.whole.expert_parameters +=
        rank.layout.domains[unit.domain].kind == DomainKind::kExpert ? elems : 0;
  }
  sample.other_bytes = static_cast<double>(
      rank_bytes(model.cluster().device, rank, small.config.runtime.repeatable) -
      rank.memory.peak_bytes());
  return sample;
}

PartPrice difference(const PartPrice& a, const PartPrice& b) {
  const auto less = [](double x, double y) { return std::max(x - y, 0.0); };
  return {.forward_ns = less(a.forward_ns, b.forward_ns),
          .backward_ns = less(a.backward_ns, b.backward_ns),
          .wgrad_ns = less(a.wgrad_ns, b.wgrad_ns),
          .update_ns = less(a.update_ns, b.update_ns),
          .parameters = less(a.parameters, b.parameters),
          .expert_parameters = less(a.expert_parameters, b.expert_parameters),
          .kept_bytes = less(a.kept_bytes, b.kept_bytes),
          .wgrad_bytes = less(a.wgrad_bytes, b.wgrad_bytes)};
}

}  // namespace

Layout priced_ranks(Layout layout, int64_t expert_tensor) {
  layout.pipeline = layout.virtual_stages = layout.shard_replicas = 1;
  layout.data = exchanging_data_ranks(layout, expert_tensor);
  layout.schedule = ScheduleKind::kOneForwardOneBackward;
  layout.shard = ShardKind::kNone;
  layout.shard_over_replicas = false;
  layout.account_for_embedding = layout.account_for_loss = false;
  return layout;
}

LayerPrices price_layers(const RunConfig& config, const ModelSpec& spec, int64_t vocabulary,
                         const Layout& layout, const CostModel& model) {
  LayerPrices prices;
  const Layout ranks = priced_ranks(layout, config.parallel.expert_tensor);
  for (const LayerSpec& kind : spec.layers.kinds()) {
    const auto sample = [&](int64_t layers) {
      return take_sample(resolve_run(small_run(config, ranks, {layers, kind}), vocabulary), model);
    };
    const Sample one = sample(1);
    const Sample two = sample(2);
    PartPrice layer = difference(two.whole, one.whole);
    layer.driver_bytes = std::max(two.other_bytes - one.other_bytes, 0.0) / kPricedMicrobatches;
    // Layers of multi-token prediction, which are of the last kind, are priced with the ends.
    if (prices.kinds.empty() || (spec.mtp_depth > 0 && kind == mtp_layer(spec))) {
      prices.ends = difference(one.whole, layer);
    }
    prices.kinds.push_back(layer);
    prices.layer_work_bytes =
        std::max(prices.layer_work_bytes, two.layer_peak_bytes - two.whole.kept_bytes);
    prices.work_bytes = std::max(prices.work_bytes, two.peak_bytes - two.whole.kept_bytes);
    prices.other_bytes = std::max(prices.other_bytes, two.other_bytes);
  }
  return prices;
}

}  // namespace braid
