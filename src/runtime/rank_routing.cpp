#include "runtime/rank_routing.h"

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "data/batch_loader.h"
#include "model/blocks/registry.h"
#include "model/mtp.h"
#include "ops/router.h"
#include "parallel/parameter_layout.h"
#include "plan/rank_programs.h"

namespace braid {
namespace {

/// The layers of the routers in the buffer "routing", in its order; empty if there is none.
std::vector<int32_t> layers_in_buffer(const Program& program) {
  const auto found = std::ranges::find(program.buffers, kRoutingBuffer, &Buffer::name);
  if (found == program.buffers.end()) {
    return {};
  }
  const BufferId id(static_cast<size_t>(found - program.buffers.begin()));
  const int64_t of_router = found->shape[1] * found->shape[2];
  std::vector<int32_t> layers(static_cast<size_t>(found->shape[0]), -1);
  for (const Task& task : program.tasks) {
    for (const BufferRange& range : program.operands_of(task)) {
      if (range.buffer == id) {
        layers[static_cast<size_t>(range.begin / of_router)] = task.label.layer;
      }
    }
  }
  return layers;
}

/// The elements [begin, begin + count) of a list of tokens.
std::vector<TokenRun> part_of(const std::vector<TokenRun>& tokens, int64_t begin, int64_t count) {
  std::vector<TokenRun> part;
  for (const TokenRun& run : tokens) {
    const int64_t first = std::clamp<int64_t>(begin, 0, run.count);
    const int64_t end = std::clamp<int64_t>(begin + count, 0, run.count);
    if (end > first) {
      part.push_back(
          {.sample = run.sample, .position = run.position + first, .count = end - first});
    }
    begin -= run.count;
  }
  return part;
}

int64_t num_tokens(const std::vector<TokenRun>& tokens) {
  int64_t count = 0;
  for (const TokenRun& run : tokens) {
    count += run.count;
  }
  return count;
}

}  // namespace

std::vector<int32_t> router_layers(const ModelSpec& model) {
  std::vector<int32_t> layers;
  for (int64_t i = 0; i < model.layers.size(); ++i) {
    if (model.layers[i].feed_forward == &kMoeBlock) {
      layers.push_back(static_cast<int32_t>(i));
    }
  }
  for (int64_t i = 0; i < model.mtp_depth && mtp_layer(model).feed_forward == &kMoeBlock; ++i) {
    layers.push_back(mtp_layer_number(model, i));
  }
  return layers;
}

std::vector<TokenRun> routed_tokens(const RunSpec& run, int rank, int64_t microbatch) {
  const MeshPosition at = run.mesh.position(rank);
  const BatchShape shape{.num_ranks = run.mesh.sizes().data,
                         .num_microbatches = run.num_microbatches,
                         .microbatch = run.microbatch_sequences};
  const int64_t first = first_sample_of(shape, 0, at.data, microbatch);
  const std::vector<int64_t> positions =
      context_shard(run.mesh, rank, run.parallel).position_list(run.config.train.sequence);
  std::vector<TokenRun> tokens;
  for (int64_t sample = first; sample < first + shape.microbatch; ++sample) {
    for (size_t i = 0; i < positions.size(); ++i) {
      if (i == 0 || positions[i] != positions[i - 1] + 1) {
        tokens.push_back({.sample = sample, .position = positions[i]});
      }
      ++tokens.back().count;
    }
  }
  const int64_t of_rank = num_tokens(tokens) / run.mesh.sizes().tensor;
  return part_of(tokens, at.tensor * of_rank, of_rank);
}

RankRouting::RankRouting(const RunPlan& plan, int rank)
    : experts_(plan.run.model.experts), per_token_(plan.run.model.experts_per_token) {
  const RunSpec& run = plan.run;
  const ExpertShard shard = expert_shard(run.mesh, rank, run.parallel);
  expert_parts_ = shard.size;
  expert_part_ = shard.index;
  const std::vector<int32_t> layers = router_layers(run.model);
  for (const int32_t layer : layers_in_buffer(plan_of_rank(plan, rank).programs[kTrainProgram])) {
    const auto found = std::ranges::find(layers, layer);
    check(found != layers.end(), "layer {} has no router", layer);
    routers_.push_back(found - layers.begin());
  }
  for (int64_t microbatch = 0; microbatch < run.num_microbatches && !routers_.empty();
       ++microbatch) {
    tokens_.push_back(routed_tokens(run, rank, microbatch));
  }
}

void RankRouting::for_each_run(const auto& visit) const {
  size_t begin = 0;
  for (const int64_t router : routers_) {
    for (const std::vector<TokenRun>& tokens : tokens_) {
      for (const TokenRun& run : tokens) {
        visit(router, run, begin);
        begin += static_cast<size_t>(run.count * per_token_);
      }
    }
  }
}

void RankRouting::fill(const RoutingSource& source, int64_t step,
                       std::span<int32_t> routing) const {
  for_each_run([&](int64_t router, const TokenRun& run, size_t begin) {
    source.read(step, router, run,
                routing.subspan(begin, static_cast<size_t>(run.count * per_token_)));
  });
}

void RankRouting::record(const RoutingRecord& file, int64_t step,
                         std::span<const int32_t> routing) const {
  for_each_run([&](int64_t router, const TokenRun& run, size_t begin) {
    file.write(step, router, run,
               routing.subspan(begin, static_cast<size_t>(run.count * per_token_)));
  });
}

std::vector<double> RankRouting::loads(std::span<const int32_t> routing) const {
  const int64_t size = experts_ / expert_parts_;
  std::vector<double> loads;
  size_t begin = 0;
  for (size_t i = 0; i < routers_.size(); ++i) {
    for (const std::vector<TokenRun>& tokens : tokens_) {
      const auto choices = static_cast<size_t>(num_tokens(tokens) * per_token_);
      const auto own = std::ranges::count_if(routing.subspan(begin, choices), [&](int32_t expert) {
        return expert / size == expert_part_;
      });
      loads.push_back(static_cast<double>(own * expert_parts_) / static_cast<double>(choices));
      begin += choices;
    }
  }
  return loads;
}

}  // namespace braid
