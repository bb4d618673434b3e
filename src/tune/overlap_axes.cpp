#include "tune/overlap_axes.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "config/fields.h"
#include "config/overlap_defaults.h"
#include "config/tensor_sites.h"
#include "config/validate.h"
#include "config/value.h"
#include "plan/choices.h"

namespace braid {
namespace {

constexpr std::array<std::string_view, 3> kColumnSites = {"qkv", "fc1", "logits"};
constexpr std::array<std::string_view, 5> kGatheredSites = {
    "qkv_fprop", "fc1_fprop", "logits_fprop", "proj_dgrad", "fc2_dgrad"};
constexpr std::array<std::string_view, 2> kScatteredSites = {"proj_fprop", "fc2_fprop"};

/// Overrides the method of one product.
void set_site(OverlapConfig& overlap, std::string_view site, std::string_view method) {
  const std::string entry = std::string(site) + "=";
  std::erase_if(overlap.tp_comm_overlap_sites,
                [&](const std::string& old) { return old.starts_with(entry); });
  overlap.tp_comm_overlap_sites.push_back(entry + std::string(method));
  std::ranges::sort(overlap.tp_comm_overlap_sites);
}

OverlapChange site_change(std::string_view site, std::string_view method) {
  return [site, method](OverlapConfig& overlap) {
    if (overlap.tp_comm_overlap) {
      set_site(overlap, site, method);
    }
  };
}

/// Of a column-parallel linear: the products of its backward share one sum.
OverlapChange column_change(std::string_view name, std::string_view dgrad, std::string_view wgrad) {
  return [=](OverlapConfig& overlap) {
    if (overlap.tp_comm_overlap) {
      set_site(overlap, std::string(name) + "_dgrad", dgrad);
      set_site(overlap, std::string(name) + "_wgrad", wgrad);
    }
  };
}

void no_tensor_overlap(OverlapConfig& overlap) {
  const OverlapConfig usual;
  overlap.tp_comm_overlap = false;
  overlap.tp_comm_overlap_ag = usual.tp_comm_overlap_ag;
  overlap.tp_comm_overlap_rs = usual.tp_comm_overlap_rs;
  overlap.tp_comm_overlap_rs_dgrad = usual.tp_comm_overlap_rs_dgrad;
  overlap.tp_comm_bulk_dgrad = usual.tp_comm_bulk_dgrad;
  overlap.tp_comm_bulk_wgrad = usual.tp_comm_bulk_wgrad;
  overlap.tp_comm_overlap_sites.clear();
}

/// Communication beside whole products.
void bulk_overlap_only(OverlapConfig& overlap, bool sequence_parallel) {
  no_tensor_overlap(overlap);
  overlap.tp_comm_overlap = true;
  overlap.tp_comm_overlap_ag = false;
  overlap.tp_comm_overlap_rs = false;
  overlap.tp_comm_bulk_dgrad = sequence_parallel;
}

/// Rings in front of products and behind those of the forward; the backward's sums under weight
/// gradients.
void rings(OverlapConfig& overlap) {
  no_tensor_overlap(overlap);
  overlap.tp_comm_overlap = true;
  for (const std::string_view site : kScatteredSites) {
    set_site(overlap, site, "ring");
  }
}

void no_gather(OverlapConfig& overlap) {
  overlap.overlap_param_gather = false;
  overlap.overlap_param_gather_with_optimizer_step = false;
  overlap.align_param_gather = false;
  overlap.param_gather_prefetch_units = 1;
  overlap.param_gather_whole_units = 0;
}

OverlapChange gather(bool with_optimizer_step, bool aligned) {
  return [=](OverlapConfig& overlap) {
    overlap.overlap_param_gather = true;
    overlap.overlap_param_gather_with_optimizer_step = with_optimizer_step;
    overlap.align_param_gather = aligned;
  };
}

OverlapChange gather_ahead(int64_t units) {
  return [=](OverlapConfig& overlap) {
    if (overlap.overlap_param_gather) {
      overlap.param_gather_prefetch_units = units;
    }
  };
}

OverlapChange messages(bool beside_compute, bool warmup_flush, bool backward) {
  return [=](OverlapConfig& overlap) {
    overlap.overlap_p2p_comm = beside_compute;
    overlap.overlap_p2p_comm_warmup_flush = warmup_flush;
    overlap.overlap_p2p_backward_on_comm_stream = backward;
  };
}

OverlapChange delay(int64_t layers, bool whole) {
  return [=](OverlapConfig& overlap) {
    overlap.overlap_p2p_wgrad_delayed_layer_number = layers;
    overlap.overlap_p2p_with_transformer_layer_wgrad = whole;
  };
}

OverlapChange defer_head(bool enabled, int64_t limit) {
  return [=](OverlapConfig& overlap) {
    overlap.defer_embedding_wgrad_compute = enabled;
    overlap.wgrad_deferral_limit = limit;
  };
}

void no_grad_reduce(OverlapConfig& overlap) {
  overlap.overlap_grad_reduce = false;
  overlap.overlap_grad_reduce_delayed_wgrad_layers = 0;
}

/// What the last reduction of a step, that of the embedding, is to run under.
OverlapAxis last_reduction_axis(const AxisLimits& limits) {
  OverlapAxis axis{"last reduction", {}};
  for (const int64_t layers : {0, 1, 4}) {
    if (layers <= limits.layers_of_job) {
      axis.choices.push_back([layers](OverlapConfig& overlap) {
        overlap.overlap_grad_reduce_delayed_wgrad_layers = overlap.overlap_grad_reduce ? layers : 0;
      });
    }
  }
  return axis;
}

void add_data_axes(const RunConfig& config, const AxisLimits& limits,
                   std::vector<OverlapAxis>& axes) {
  const ParallelConfig& parallel = config.parallel;
  if (parallel.ranks == 1) {
    return;
  }
  axes.push_back({"gradients", {no_grad_reduce, [](OverlapConfig& overlap) {
                                  overlap.overlap_grad_reduce = true;
                                }}});
  if (parallel.data * parallel.context == 1) {
    return;
  }
  axes.push_back(last_reduction_axis(limits));
  const auto shard = choice<ShardKind>(parallel.shard);
  if (shard == ShardKind::kNone) {
    return;
  }
  OverlapAxis gathers{"gathers", {no_gather, gather(false, false)}};
  if (shard != ShardKind::kParameters) {
    for (const auto& [with_step, aligned] : {std::pair{true, false}, {false, true}, {true, true}}) {
      gathers.choices.push_back(gather(with_step, aligned));
    }
  }
  axes.push_back(std::move(gathers));
  axes.push_back(
      {"prefetch", {gather_ahead(1), gather_ahead(0), gather_ahead(2), gather_ahead(4)}});
  if (may_keep_units_whole(config)) {
    axes.push_back(whole_units_axis());
  }
}

void add_pipeline_axes(const AxisLimits& limits, int64_t stages, std::vector<OverlapAxis>& axes) {
  axes.push_back(
      {"messages",
       {messages(false, false, false), messages(true, false, false), messages(true, true, false),
        messages(true, false, true), messages(true, true, true)}});
  OverlapAxis delays{"delayed weight gradients", {delay(0, false)}};
  for (const int64_t layers : {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{8}}) {
    const int64_t capped = std::min(layers, limits.layers_of_job);
    delays.choices.push_back(delay(capped, false));
    delays.choices.push_back(delay(capped, true));
    if (layers >= limits.layers_of_job) {
      break;
    }
  }
  axes.push_back(std::move(delays));
  OverlapAxis heads{"head's weight gradients", {defer_head(false, 0), defer_head(true, 0)}};
  for (const int64_t limit : {stages / 2, stages, 2 * stages}) {
    if (limit > 0 && limit < limits.num_microbatches) {
      heads.choices.push_back(defer_head(true, limit));
    }
  }
  axes.push_back(std::move(heads));
  axes.push_back({"cool-down",
                  {[](OverlapConfig& overlap) { overlap.fill_cooldown = false; },
                   [](OverlapConfig& overlap) { overlap.fill_cooldown = true; }}});
}

/// All choices of products with tensor ranks; those that cut products only if rounding may change.
void add_tensor_axes(const RunConfig& config, std::vector<OverlapAxis>& axes) {
  const bool rows = config.parallel.sequence_parallel;
  const bool pieces = config.overlap.may_change_rounding;
  OverlapAxis tensor{"tensor", {no_tensor_overlap, [rows](OverlapConfig& overlap) {
                                  bulk_overlap_only(overlap, rows);
                                }}};
  if (rows && pieces) {
    tensor.choices.emplace_back(rings);
  }
  axes.push_back(std::move(tensor));
  for (const std::string_view name : kColumnSites) {
    OverlapAxis column{std::string(name), {column_change(name, "none", "none")}};
    column.choices.push_back(column_change(name, "none", "bulk"));
    if (rows) {
      column.choices.push_back(column_change(name, "bulk", "none"));
      column.choices.push_back(column_change(name, "bulk", "bulk"));
    }
    if (pieces) {
      column.choices.push_back(column_change(name, rows ? "ring" : "chunked:2", "none"));
    }
    axes.push_back(std::move(column));
  }
  if (!pieces) {
    return;
  }
  for (const std::string_view site : kScatteredSites) {
    OverlapAxis scattered{std::string(site), {site_change(site, "none")}};
    for (const char* const method : {"chunked:2", "chunked:4", "chunked:8"}) {
      scattered.choices.push_back(site_change(site, method));
    }
    if (rows) {
      scattered.choices.push_back(site_change(site, "ring"));
    }
    axes.push_back(std::move(scattered));
  }
  if (rows) {
    for (const std::string_view site : kGatheredSites) {
      axes.push_back({std::string(site), {site_change(site, "none"), site_change(site, "ring")}});
    }
  }
}

OverlapChange pair(const char* kind) {
  return [kind](OverlapConfig& overlap) { overlap.pair_forward_backward = kind; };
}

/// Halves of forwards hide what rings would: products are not cut any further to begin with.
void halve_forwards(OverlapConfig& overlap) {
  overlap.pair_forward_backward = "forward_halves";
  if (!overlap.tp_comm_overlap) {
    return;
  }
  for (const std::string_view site : kScatteredSites) {
    set_site(overlap, site, "none");
  }
  for (const std::string_view site : kGatheredSites) {
    if (site.ends_with("_fprop")) {
      set_site(overlap, site, "none");
    }
  }
}

/// Which jobs can be woven depends on schedule and microbatch; validation knows.
bool can_pair(const RunConfig& config, const char* kind) {
  RunConfig paired = config;
  paired.overlap = manual_nothing(config.overlap);
  pair(kind)(paired.overlap);
  try {
    validate(paired);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

/// What brings other work beside communication of tensor and context ranks.
void add_weaving_axes(const RunConfig& config, std::vector<OverlapAxis>& axes) {
  const ParallelConfig& parallel = config.parallel;
  const bool rounding = config.overlap.may_change_rounding;
  OverlapAxis pairs{"pairs", {pair("none")}};
  for (const char* const kind : {"forward_backward", "halves"}) {
    // Halves of a microbatch add weight gradients in another order, or those of norms.
    if ((rounding || kind != std::string_view("halves")) && can_pair(config, kind)) {
      pairs.choices.push_back(pair(kind));
    }
  }
  if (rounding && can_pair(config, "forward_halves")) {
    pairs.choices.emplace_back(halve_forwards);
  }
  if (pairs.choices.size() > 1) {
    axes.push_back(std::move(pairs));
  }
  if (rounding && parallel.tensor > 1 && parallel.context == 1) {
    axes.push_back({"split",
                    {[](OverlapConfig& overlap) { overlap.split_ops = false; },
                     [](OverlapConfig& overlap) { overlap.split_ops = overlap.tp_comm_overlap; }}});
  }
  if (rounding && parallel.tensor == 1 && parallel.context > 1 &&
      choice<ContextExchange>(parallel.context_method) == ContextExchange::kAllToAll) {
    axes.push_back({"split",
                    {[](OverlapConfig& overlap) { overlap.split_ops = false; },
                     [](OverlapConfig& overlap) {
                       overlap.overlap_context_comm = true;
                       overlap.split_ops = true;
                     }}});
  }
}

OverlapChange engine(const char* name) {
  return [name](OverlapConfig& overlap) { overlap.comm_engine = name; };
}

bool leaves_engine_open(const OverlapConfig& overlap) {
  return choice<EngineChoice>(overlap.comm_engine) == EngineChoice::kAuto;
}

/// Sums by copy engines are those of the CPU, which NCCL rounds more often.
bool may_choose_engines(const RunConfig& config, const AxisLimits& limits) {
  return limits.copy_engines && config.overlap.may_change_rounding &&
         leaves_engine_open(config.overlap);
}

std::string method_of(std::string_view site, const OverlapConfig& overlap) {
  for (const TensorSiteChoice& choice : tensor_site_choices(overlap)) {
    if (choice.site == site) {
      return choice.method == "chunked" ? fmt::format("chunked:{}", choice.splits) : choice.method;
    }
  }
  return "none";
}

/// "fc1_fprop = ring instead of none", for each product whose method changes.
std::vector<std::string> site_changes(const OverlapConfig& from, const OverlapConfig& to) {
  std::set<std::string> sites;
  for (const OverlapConfig* const overlap : {&from, &to}) {
    for (const TensorSiteChoice& choice : tensor_site_choices(*overlap)) {
      sites.insert(choice.site);
    }
  }
  std::vector<std::string> texts;
  for (const std::string& site : sites) {
    const std::string before = method_of(site, from);
    const std::string after = method_of(site, to);
    if (before != after) {
      texts.push_back(fmt::format("{} = {} instead of {}", site, after, before));
    }
  }
  return texts;
}

}  // namespace

bool has_copy_engines(const CostModel& model) {
  return model.links() == nullptr && !model.cluster().device.is_host();
}

std::vector<OverlapAxis> overlap_axes(const RunConfig& config, const AxisLimits& limits) {
  const ParallelConfig& parallel = config.parallel;
  std::vector<OverlapAxis> axes;
  if (parallel.pipeline > 1) {
    add_pipeline_axes(limits, parallel.pipeline, axes);
  }
  add_data_axes(config, limits, axes);
  if (parallel.context > 1) {
    axes.push_back({"context",
                    {[](OverlapConfig& overlap) { overlap.overlap_context_comm = false; },
                     [](OverlapConfig& overlap) { overlap.overlap_context_comm = true; }}});
  }
  if (parallel.tensor > 1) {
    add_tensor_axes(config, axes);
  }
  add_weaving_axes(config, axes);
  if (parallel.ranks > 1 && limits.copy_engines && leaves_engine_open(config.overlap)) {
    OverlapAxis engines{"engine", {engine("sm"), engine("auto")}};
    if (may_choose_engines(config, limits)) {
      engines.choices.push_back(engine("copy"));
    }
    axes.push_back(std::move(engines));
  }
  return axes;
}

bool may_keep_units_whole(const RunConfig& config) {
  return choice<ShardKind>(config.parallel.shard) == ShardKind::kParameters &&
         config.parallel.data * config.parallel.context > 1 && config.memory.recompute_layers == 0;
}

OverlapAxis whole_units_axis() {
  OverlapAxis axis{"whole units", {}};
  for (const int64_t units : {0, 1, 2}) {
    axis.choices.push_back([units](OverlapConfig& overlap) {
      overlap.param_gather_whole_units = overlap.overlap_param_gather ? units : 0;
    });
  }
  return axis;
}

OverlapAxis list_schedule_axis() {
  return {"list schedule",
          {[](OverlapConfig& overlap) { overlap.list_schedule = false; },
           [](OverlapConfig& overlap) { overlap.list_schedule = true; }}};
}

void schedule_whole_step(const RunConfig& config, const AxisLimits& limits,
                         OverlapConfig& overlap) {
  overlap.list_schedule = true;
  if (may_choose_engines(config, limits)) {
    overlap.comm_engine = "hidden";
  }
}

OverlapConfig manual_nothing(const OverlapConfig& overlap) {
  OverlapConfig nothing;
  nothing.mode = "manual";
  nothing.cost = overlap.cost;
  nothing.comm_engine = overlap.comm_engine;
  nothing.disable_passes = overlap.disable_passes;
  return nothing;
}

OverlapConfig manual_defaults(const RunConfig& config) {
  RunConfig usual = config;
  usual.overlap = manual_nothing(config.overlap);
  usual.overlap.mode = "auto";
  OverlapConfig overlap = overlap_in_force(usual);
  overlap.mode = "manual";
  return overlap;
}

OverlapConfig manual_rings(const RunConfig& config) {
  OverlapConfig overlap = manual_defaults(config);
  rings(overlap);
  return overlap;
}

std::string describe_overlap_change(const OverlapConfig& from, const OverlapConfig& to) {
  RunConfig before;
  RunConfig after;
  before.overlap = from;
  after.overlap = to;
  std::vector<std::string> texts;
  for (const Field& field : config_fields()) {
    const std::optional<ConfigValue> old_value = value_of(field, before);
    const std::optional<ConfigValue> value = value_of(field, after);
    if (field.section != "overlap" || field.name == "mode" || old_value == value) {
      continue;
    }
    if (field.name == "tp_comm_overlap_sites" && from.tp_comm_overlap && to.tp_comm_overlap) {
      std::ranges::move(site_changes(from, to), std::back_inserter(texts));
    } else if (std::holds_alternative<std::string>(*value)) {
      texts.push_back(
          fmt::format("{} = {} instead of {}", field.name, to_text(*value), to_text(*old_value)));
    } else if (field.name != "tp_comm_overlap_sites") {
      texts.push_back(fmt::format("{} = {}", field.name, to_text(*value)));
    }
  }
  return join(texts, ", ");
}

}  // namespace braid
