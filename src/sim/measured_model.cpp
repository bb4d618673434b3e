#include "sim/measured_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "ops/linear_swiglu.h"
#include "ops/op.h"
#include "sim/analytic_model.h"
#include "sim/interpolate.h"
#include "sim/op_family.h"

namespace braid {
namespace {

/// Specs with one key are interpolated together.
using TableKey = std::pair<std::string, DType>;

TableKey table_key(const OpSpec& spec) {
  return {spec.op, spec.operands.front().dtype};
}

double log_size(int64_t size) {
  return std::log2(static_cast<double>(std::max<int64_t>(size, 1)));
}

Coordinates coordinates_of(const OpSpec& spec, OpFamily family) {
  if (family == OpFamily::kGemm) {
    const GemmShape shape = gemm_shape(spec);
    return {log_size(shape.rows), log_size(shape.columns), log_size(shape.depth),
            log_size(shape.groups)};
  }
  const AttentionShape shape = attention_shape(spec);
  return {log_size(shape.sequence), log_size(shape.heads) + log_size(shape.sequences),
          log_size(shape.head_size)};
}

double bytes_of(const OpSpec& spec) {
  const OpCost cost = spec_cost(spec);
  return cost.bytes_read + cost.bytes_written;
}

bool is_below(const Coordinates& a, const Coordinates& b) {
  return std::ranges::equal(a, b, std::ranges::less_equal());
}

/// Measured shapes of one op of family kGemm or kAttention.
class ShapeTable {
 public:
  struct Point {
    Coordinates at;
    double ns;
    double analytic_ns;
  };

  explicit ShapeTable(std::vector<Point> points)
      : points_(std::move(points)), ratios_(ratios_of(points_)) {}

  Cost cost(const Coordinates& at, double analytic_ns) const {
    const double ns = between_measured(at, analytic_ns * ratios_.ratio(at));
    return {.ns = round_cost_ns(ns),
            .source = ratios_.covers(at) ? CostSource::kInterpolated : CostSource::kExtrapolated};
  }

 private:
  static ScatteredRatios ratios_of(const std::vector<Point>& points) {
    std::vector<ScatteredPoint> ratios;
    for (const Point& point : points) {
      ratios.push_back({.at = point.at, .log_ratio = std::log(point.ns / point.analytic_ns)});
    }
    return ScatteredRatios(std::move(ratios));
  }

  /// Limits the time to be at least that of a smaller shape and at most that of a larger one, if
  /// the two agree.
  double between_measured(const Coordinates& at, double ns) const {
    double low = 0;
    double high = INFINITY;
    for (const Point& point : points_) {
      const bool below = is_below(point.at, at);
      const bool above = is_below(at, point.at);
      if (below && !above) {
        low = std::max(low, point.ns);
      } else if (above && !below) {
        high = std::min(high, point.ns);
      }
    }
    return low <= high ? std::clamp(ns, low, high) : ns;
  }

  std::vector<Point> points_;
  ScatteredRatios ratios_;
};

struct SpecHash {
  size_t operator()(const OpSpec& spec) const { return hash_value(spec); }
};

/// The key of a curve over bytes: communications with equal keys are its points.
using CommKey = std::array<int, 5>;

CommKey comm_key(const CommSpec& spec) {
  return {static_cast<int>(spec.kind), static_cast<int>(spec.algorithm), spec.placement.num_ranks,
          spec.placement.num_nodes, spec.placement.fewest_per_node};
}

DeviceSpec device_of(const Profile& profile) {
  const DeviceSpec* known = find_device(profile.device_kind);
  check(known != nullptr, "a profile of the unknown device {}", profile.device_kind);
  DeviceSpec device = *known;
  for (const auto& [dtype, rate] : profile.peak_flops_per_s) {
    if (dtype == DType::kF64) {
      device.f64_flops_per_s = rate;
    } else if (dtype == DType::kF32) {
      device.f32_flops_per_s = rate;
    } else if (dtype_bytes(dtype) == 2) {
      device.bf16_flops_per_s = rate;
    } else {
      device.fp8_flops_per_s = rate;
    }
  }
  if (profile.memory_bytes_per_s) {
    device.memory_bytes_per_s = *profile.memory_bytes_per_s;
    if (device.is_host) {  // ranks exchange data through memory: a byte is read and written
      device.node.inside.bytes_per_s = *profile.memory_bytes_per_s / 2;
    }
  }
  device.launch_ns = profile.launch_ns;
  device.step_overhead_ns = profile.step_overhead_ns;
  return device;
}

std::optional<SizeCurve> copy_curve(const DeviceSpec& device,
                                    const std::vector<CopyPoint>& copies) {
  std::vector<SizePoint> points;
  for (const CopyPoint& copy : copies) {
    points.push_back({.size = static_cast<double>(copy.bytes),
                      .ns = static_cast<double>(copy.timing.ns),
                      .model_ns = analytic_host_copy_ns(device, copy.bytes)});
  }
  return points.empty() ? std::nullopt : std::optional<SizeCurve>(std::in_place, points);
}

Cost curve_cost(const SizeCurve& curve, double size, double analytic_ns) {
  return {.ns = round_cost_ns(curve.ns(size, analytic_ns)),
          .source = curve.covers(size) ? CostSource::kInterpolated : CostSource::kExtrapolated};
}

class MeasuredModel final : public CostModel {
 public:
  MeasuredModel(const Profile& profile, int num_devices)
      : cluster_(cluster_for_ranks(device_of(profile), num_devices)),
        contention_(profile.contention.value_or(default_contention())),
        to_device_(copy_curve(cluster_.device, profile.to_device)),
        to_host_(copy_curve(cluster_.device, profile.to_host)),
        description_(fmt::format("{}, measured: {} shapes on {}, {}", cluster_.name,
                                 profile.tasks.size(), profile.origin.device,
                                 profile.origin.date)) {
    add_tasks(profile.tasks);
    add_communication(profile.communication);
  }

  Cost task_cost(const OpSpec& spec) const override {
    const auto measured = exact_.find(timing_key(spec));
    if (measured != exact_.end()) {
      return {.ns = measured->second, .source = CostSource::kMeasured};
    }
    const double analytic_ns = analytic_task_ns(cluster_.device, spec);  // checks the spec
    const OpFamily family = family_of(spec);
    if (family == OpFamily::kHostCopy) {
      return host_copy_cost(host_copy_of(spec), host_copy_bytes(spec));
    }
    if (family == OpFamily::kNothing) {
      return analytic(analytic_ns);
    }
    if (family == OpFamily::kMemoryBound) {
      const auto curve = curves_.find(table_key(spec));
      return curve == curves_.end() ? analytic(analytic_ns)
                                    : curve_cost(curve->second, bytes_of(spec), analytic_ns);
    }
    const auto table = tables_.find(table_key(spec));
    if (table == tables_.end() && is_fused_product(spec)) {
      return cost_of_parts(spec);
    }
    return table == tables_.end() ? analytic(analytic_ns)
                                  : table->second.cost(coordinates_of(spec, family), analytic_ns);
  }

  Cost comm_cost(const CommSpec& asked) const override {
    const CommSpec spec = as_measured(asked);
    const double analytic_ns = analytic_comm_ns(cluster_, spec);  // checks the spec
    const auto curve = communication_.find(comm_key(spec));
    if (curve == communication_.end()) {
      return analytic(analytic_ns);
    }
    const auto size = static_cast<double>(spec.bytes);
    Cost cost = curve_cost(curve->second, size, analytic_ns);
    const auto& sizes = comm_sizes_.at(curve->first);
    if (std::binary_search(sizes.begin(), sizes.end(), spec.bytes)) {
      cost.source = CostSource::kMeasured;
    }
    return cost;
  }

  Cost host_copy_cost(HostCopy direction, int64_t bytes) const override {
    const auto& curve = direction == HostCopy::kToDevice ? to_device_ : to_host_;
    const double analytic_ns = analytic_host_copy_ns(cluster_.device, bytes);
    return curve ? curve_cost(*curve, static_cast<double>(bytes), analytic_ns)
                 : analytic(analytic_ns);
  }

  const Contention& contention() const override { return contention_; }
  const Cluster& cluster() const override { return cluster_; }
  int64_t launch_ns() const override { return cluster_.device.launch_ns; }
  int64_t step_overhead_ns() const override { return cluster_.device.step_overhead_ns; }
  std::string description() const override { return description_; }

 private:
  /// The cost of a product with an activation function if such products were not timed.
  Cost cost_of_parts(const OpSpec& spec) const {
    const ProductAndActivation parts = unfused(spec);
    const Cost product = task_cost(parts.product);
    const Cost activation = task_cost(parts.activation);
    const double ns = fused_product_ns(cluster_.device, spec, static_cast<double>(product.ns),
                                       static_cast<double>(activation.ns));
    return {.ns = round_cost_ns(ns),
            .source = std::max({product.source, activation.source, CostSource::kInterpolated})};
  }

  /// If a library was timed and not its algorithms, "ring" is the library's choice: its other
  /// algorithms then cost the same.
  CommSpec as_measured(const CommSpec& spec) const {
    CommSpec ring = spec;
    ring.algorithm = CommAlgorithm::kRing;
    const bool is_of_library = !uses_copy_engine(spec.algorithm) &&
                               spec.algorithm != CommAlgorithm::kRing &&
                               spec.algorithm != CommAlgorithm::kDirect;
    const bool is_choice = is_of_library && comm_fault(spec).empty() &&
                           !communication_.contains(comm_key(spec)) &&
                           communication_.contains(comm_key(ring));
    return is_choice ? ring : spec;
  }

  static Cost analytic(double ns) {
    return {.ns = round_cost_ns(ns), .source = CostSource::kAnalytic};
  }

  void add_tasks(const std::vector<TaskPoint>& tasks) {
    std::map<TableKey, std::vector<ShapeTable::Point>> shapes;
    std::map<TableKey, std::vector<SizePoint>> sizes;
    for (const TaskPoint& task : tasks) {
      exact_.emplace(timing_key(task.spec), task.timing.ns);
      const OpFamily family = family_of(task.spec);
      const auto ns = static_cast<double>(task.timing.ns);
      const double analytic_ns = analytic_task_ns(cluster_.device, task.spec);
      if (family == OpFamily::kMemoryBound) {
        sizes[table_key(task.spec)].push_back({bytes_of(task.spec), ns, analytic_ns});
      } else if (family == OpFamily::kGemm || family == OpFamily::kAttention) {
        shapes[table_key(task.spec)].push_back(
            {.at = coordinates_of(task.spec, family), .ns = ns, .analytic_ns = analytic_ns});
      }
    }
    for (auto& [key, points] : shapes) {
      tables_.emplace(key, ShapeTable(std::move(points)));
    }
    for (auto& [key, points] : sizes) {
      curves_.emplace(key, SizeCurve(std::move(points)));
    }
  }

  void add_communication(const std::vector<CommPoint>& points) {
    std::map<CommKey, std::vector<SizePoint>> sizes;
    for (const CommPoint& point : points) {
      const CommKey key = comm_key(point.spec);
      sizes[key].push_back({.size = static_cast<double>(point.spec.bytes),
                            .ns = static_cast<double>(point.timing.ns),
                            .model_ns = analytic_comm_ns(cluster_, point.spec)});
      comm_sizes_[key].push_back(point.spec.bytes);
    }
    for (auto& [key, curve] : sizes) {
      communication_.emplace(key, SizeCurve(std::move(curve)));
      std::sort(comm_sizes_[key].begin(), comm_sizes_[key].end());
    }
  }

  Cluster cluster_;
  Contention contention_;
  std::unordered_map<OpSpec, int64_t, SpecHash> exact_;
  std::map<TableKey, ShapeTable> tables_;
  std::map<TableKey, SizeCurve> curves_;
  std::map<CommKey, SizeCurve> communication_;
  std::map<CommKey, std::vector<int64_t>> comm_sizes_;
  std::optional<SizeCurve> to_device_;
  std::optional<SizeCurve> to_host_;
  std::string description_;
};

}  // namespace

std::unique_ptr<CostModel> make_measured_model(const Profile& profile, int num_devices) {
  return std::make_unique<MeasuredModel>(profile, num_devices);
}

bool names_profile(std::string_view text) {
  return !names_device_file(text) &&
         (text.find('/') != std::string_view::npos || text.ends_with(".json"));
}

std::unique_ptr<CostModel> load_cost_model(std::string_view text, int num_devices) {
  if (names_profile(text)) {
    return make_measured_model(load_profile(std::string(text)), num_devices);
  }
  Cluster cluster = parse_cluster(text);
  if (cluster.num_devices < num_devices) {
    throw_config_error("cluster {} has {} devices and parallel.ranks is {}; use {} or more",
                       cluster.name, cluster.num_devices, num_devices,
                       cluster_for_ranks(cluster, num_devices).name);
  }
  return make_analytic_model(std::move(cluster));
}

}  // namespace braid
