#include "plan/fp8_sites.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "config/choices.h"
#include "model/forward.h"
#include "parallel/parameter_layout.h"
#include "report/fp8_table.h"

namespace braid {
namespace {

std::string place_in_layer(const std::string& site) {
  return split_site(site).place;
}

/// Equal products of several layers.
struct Line {
  ProductSite first;
  int64_t layers = 0;
};

std::vector<Line> lines_of(const std::vector<ProductSite>& sites) {
  std::vector<Line> lines;
  for (const ProductSite& site : sites) {
    const auto is_same = [&](const Line& line) {
      return place_in_layer(line.first.site) == place_in_layer(site.site) &&
             std::tie(line.first.rows, line.first.features, line.first.depth, line.first.reason) ==
                 std::tie(site.rows, site.features, site.depth, site.reason);
    };
    const auto found = std::ranges::find_if(lines, is_same);
    if (found == lines.end()) {
      lines.push_back({site, 1});
    } else {
      ++found->layers;
    }
  }
  return lines;
}

std::string describe_scales(const Fp8Recipe& recipe) {
  switch (recipe.block) {
    case 0:
      return "one scale for each matrix";
    case 32:
      return recipe.square_weights ? "scales of 1 x 32 elements, 32 x 32 of a weight (E8M0)"
                                   : "scales of 1 x 32 elements (E8M0)";
    default:
      return "scales of 1 x 128 elements, 128 x 128 of a weight";
  }
}

/// How a factor travels that other ranks send; empty: none does.
std::string describe_sent(const RunSpec& run, const ProductSite& site) {
  if (site.sent == SentFactor::kNone || !run.fp8->dispatches_copies) {
    return {};
  }
  return fmt::format("; {} travels in {}", site.sent == SentFactor::kX ? "x" : "dy",
                     site.reason.empty() ? "FP8" : choice_name(run.dtype));
}

std::string describe_types(const RunSpec& run, const ProductSite& site) {
  if (!site.reason.empty()) {
    return fmt::format("{} ({})", choice_name(run.dtype), site.reason);
  }
  return run.fp8->forward == run.fp8->gradient
             ? std::string(dtype_name(run.fp8->forward))
             : fmt::format("{}, gradients {}", dtype_name(run.fp8->forward),
                           dtype_name(run.fp8->gradient));
}

StageGraph forward_of(const RunSpec& run) {
  return build_forward(run.model, {.microbatch = run.microbatch_sequences,
                                   .sequence = run.config.train.sequence,
                                   .dtype = run.dtype,
                                   .tensor = {.size = run.mesh.sizes().tensor,
                                              .sequence_parallel = run.parallel.sequence_parallel},
                                   .context = context_shard(run.mesh, 0, run.parallel),
                                   .experts = expert_shard(run.mesh, 0, run.parallel),
                                   .mtp = true});
}

}  // namespace

std::vector<ProductSite> fp8_sites(const RunSpec& run) {
  if (!run.fp8) {
    return {};
  }
  StageGraph graph = forward_of(run);
  return quantize_products(graph, *run.fp8);
}

std::set<std::string> fp8_weights(const RunSpec& run) {
  if (!run.fp8) {
    return {};
  }
  const bool has_shards = run.parallel.shard != ShardKind::kNone;
  const bool has_one_scale_both_ways = run.fp8->block == 0 || run.fp8->square_weights;
  if (has_shards && !(has_one_scale_both_ways && run.config.train.fp8_param_gather)) {
    return {};
  }
  StageGraph graph = forward_of(run);
  quantize_products(graph, *run.fp8);
  std::set<std::string> names;
  for (const Node& node : graph.weights) {
    names.insert(graph.value(node.operands[0]).name);
  }
  for (const Node& node : graph.forward) {  // what reads a weight in the backward reads it here too
    for (const ValueId id : node.operands) {
      if (graph.value(id).kind == ValueKind::kParam) {
        names.erase(graph.value(id).name);
      }
    }
  }
  return names;
}

std::string describe_fp8(const RunSpec& run) {
  if (!run.fp8) {
    return {};
  }
  std::string text = fmt::format("fp8      {}; all else in {}\n", describe_scales(*run.fp8),
                                 choice_name(run.dtype));
  for (const Line& line : lines_of(fp8_sites(run))) {
    const std::string experts =
        line.first.experts == 0 ? "" : fmt::format(", {} experts", line.first.experts);
    text += fmt::format("fp8      {:<16} {:>7} x {:>6} x {:>6}  {:>4} layers{}  {}{}\n",
                        place_in_layer(line.first.site), line.first.rows, line.first.features,
                        line.first.depth, line.layers, experts, describe_types(run, line.first),
                        describe_sent(run, line.first));
  }
  if (!run.parallel.fp8_weights.empty()) {
    text += fmt::format("fp8      {} weights are kept as main weights and FP8 copies alone{}\n",
                        run.parallel.fp8_weights.size(),
                        run.parallel.shard == ShardKind::kNone ? "" : "; ranks gather the copies");
  }
  return text;
}

}  // namespace braid
