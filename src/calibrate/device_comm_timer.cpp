#include "calibrate/device_comm_timer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "sim/analytic_model.h"

namespace braid {
namespace {

constexpr int64_t kElemBytes = 4;  // communication is in f32
constexpr int64_t kMaxCalls = 64;
constexpr int64_t kContentionBytes = int64_t{128} << 20;
constexpr int kCommPriority = 1;  // like assign_streams

bool is_one_message(const CommSpec& spec) {
  return spec.kind == CommKind::kSendRecv && spec.placement.num_ranks == 2;
}

std::string_view op_of(const CommSpec& spec) {
  if (spec.kind != CommKind::kSendRecv) {
    return comm_kind_name(spec.kind);
  }
  return is_one_message(spec) ? kSendOp.name : kRingShiftOp.name;
}

OperandSpec operand(Access access, int64_t elems) {
  return {DType::kF32, access, {elems}};
}

/// A program of the timer. All programs of a rank have the same persistent buffers, so that they
/// share them.
class TimedProgram {
 public:
  TimedProgram(int rank, int num_ranks, int64_t num_elems)
      : rank_(rank), builder_("time communication", rank, num_ranks) {
    Group group{.name = "calibrate", .kind = GroupKind::kWorld, .ranks = {}};
    for (int member = 0; member < num_ranks; ++member) {
      group.ranks.push_back(member);
    }
    builder_.add_group(std::move(group));
    compute_ = builder_.add_stream({"compute", StreamKind::kCompute, 0});
    comm_ = builder_.add_stream({"comm", StreamKind::kComm, kCommPriority});
    x_ = add_buffer("x", DType::kF32, {num_elems});
    y_ = add_buffer("y", DType::kF32, {num_elems});
  }

  BufferId add_buffer(std::string name, DType dtype, Shape shape) {
    return builder_.add_buffer({.name = std::move(name),
                                .dtype = dtype,
                                .shape = shape,
                                .role = BufferRole::kIo,
                                .lifetime = Lifetime::kPersistent});
  }

  void add_calls(const CommSpec& spec, int64_t count) {
    const int n = spec.placement.num_ranks;
    const int64_t block = std::max<int64_t>(1, spec.bytes / kElemBytes / n);
    const bool by_blocks = spec.kind == CommKind::kAllGather ||
                           spec.kind == CommKind::kReduceScatter ||
                           spec.kind == CommKind::kAllToAll;
    const int64_t whole = by_blocks ? n * block : std::max<int64_t>(1, spec.bytes / kElemBytes);
    const int64_t send = spec.kind == CommKind::kAllGather ? block : whole;
    const int64_t recv = spec.kind == CommKind::kReduceScatter ? block : whole;
    OpSpec call = call_of(spec, send, recv);
    if (uses_copy_engine(spec.algorithm)) {
      call = by_copy_engine(std::move(call));
    }
    std::vector<BufferRange> ranges;
    for (const OperandSpec& one : call.operands) {
      ranges.push_back({writes(one.access) ? y_ : x_, 0, one.shape.num_elems()});
    }
    for (int64_t i = 0; i < count; ++i) {
      builder_.add_task(call, ranges, comm_, {.phase = Phase::kComm});
    }
  }

  void add_compute(const OpSpec& spec, std::span<const BufferRange> ranges, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      builder_.add_task(spec, ranges, compute_, {});
    }
  }

  Program take() { return builder_.take(); }

 private:
  OpSpec call_of(const CommSpec& spec, int64_t send, int64_t recv) const {
    std::string op(op_of(spec));
    if (is_one_message(spec)) {  // from member 0 to member 1
      const auto attributes = to_attributes(MessageAttributes{.group = 0, .peer = 1 - rank_});
      return rank_ == 0
                 ? OpSpec{op, attributes, {operand(Access::kRead, send)}}
                 : OpSpec{std::string(kRecvOp.name), attributes, {operand(Access::kWrite, recv)}};
    }
    std::vector<OperandSpec> operands{operand(Access::kRead, send), operand(Access::kWrite, recv)};
    if (spec.kind == CommKind::kSendRecv) {
      return {std::move(op), to_attributes(RingShiftAttributes{}), std::move(operands)};
    }
    const bool has_root = spec.kind == CommKind::kBroadcast || spec.kind == CommKind::kReduce;
    return {std::move(op),
            has_root ? to_attributes(RootAttributes{}) : to_attributes(CollectiveAttributes{}),
            std::move(operands)};
  }

  int rank_;
  ProgramBuilder builder_;
  StreamId compute_;
  StreamId comm_;
  BufferId x_;
  BufferId y_;
};

/// The specs to time in groups of one size, smallest first.
std::vector<CommSpec> specs_of(const DeviceCommOptions& options, int group_size) {
  std::vector<CommSpec> specs;
  for (size_t kind = 0; kind < kNumCommKinds; ++kind) {
    for (const CommAlgorithm algorithm : {CommAlgorithm::kRing, CommAlgorithm::kCopyEngineDirect}) {
      for (const int64_t bytes : options.sizes_bytes) {
        const CommSpec spec{.kind = static_cast<CommKind>(kind),
                            .algorithm = algorithm,
                            .placement = {group_size, 1, group_size},
                            .bytes = bytes};
        const bool by_copies = uses_copy_engine(algorithm);
        if (!by_copies ||
            (options.copy_engines && comm_fault(spec).empty() && copies_suffice(op_of(spec)))) {
          specs.push_back(spec);
        }
      }
    }
  }
  return specs;
}

int64_t repetitions(const DeviceCommOptions& options, double guess_ns) {
  return std::clamp<int64_t>(
      std::llround(static_cast<double>(options.program_ns) / std::max(guess_ns, 1.0)), 1,
      kMaxCalls);
}

/// Elements of x and y, for the largest size of all calls, with a block for every rank.
int64_t elems_for(const DeviceCommOptions& options) {
  const int64_t largest = *std::max_element(options.sizes_bytes.begin(), options.sizes_bytes.end());
  return std::max<int64_t>(largest / kElemBytes, options.num_ranks);
}

constexpr int64_t kOverheadCalls = 32;

/// Programs of one rank: one smallest call and many, then one for each spec.
std::vector<Program> comm_programs(const DeviceCommOptions& options, int rank, int group_size,
                                   std::span<const CommSpec> specs,
                                   std::span<const int64_t> counts) {
  std::vector<Program> programs;
  const auto add = [&](const CommSpec& spec, int64_t count) {
    TimedProgram program(rank, group_size, elems_for(options));
    program.add_calls(spec, count);
    programs.push_back(program.take());
  };
  const CommSpec smallest{.kind = CommKind::kAllReduce,
                          .algorithm = CommAlgorithm::kRing,
                          .placement = {group_size, 1, group_size},
                          .bytes = kElemBytes * group_size};
  add(smallest, 1);
  add(smallest, kOverheadCalls);
  for (size_t i = 0; i < specs.size(); ++i) {
    add(specs[i], counts[i]);
  }
  return programs;
}

template <class MakePrograms>
std::vector<std::vector<Program>> by_rank(int num_ranks, MakePrograms&& make) {
  std::vector<std::vector<Program>> programs;
  for (int rank = 0; rank < num_ranks; ++rank) {
    programs.push_back(make(rank));
  }
  return programs;
}

Timing per_call(const Timing& timing, int64_t count) {
  const double ns = static_cast<double>(timing.ns) / static_cast<double>(count);
  return {.ns = std::max<int64_t>(1, std::llround(ns)), .spread = timing.spread};
}

// ---- compute together with communication ----

/// The compute task that runs together with communication, in its own buffers.
struct ComputeTask {
  OpSpec spec;
  std::vector<std::string> names;  // of its buffers, by operand
};

ComputeTask product(DType dtype, int64_t rows, int64_t depth, int64_t columns) {
  return {.spec = {std::string(kLinearOp.name),
                   to_attributes(LinearAttributes{}),
                   {{dtype, Access::kRead, {rows, depth}},
                    {dtype, Access::kRead, {columns, depth}},
                    {dtype, Access::kWrite, {rows, columns}}}},
          .names = {"product.x", "product.w", "product.y"}};
}

ComputeTask sum(DType dtype, int64_t elems) {
  return {.spec = {std::string(kAddOp.name),
                   {},
                   {{dtype, Access::kRead, {elems}},
                    {dtype, Access::kRead, {elems}},
                    {dtype, Access::kWrite, {elems}}}},
          .names = {"sum.a", "sum.b", "sum.y"}};
}

/// Random numbers in [-1, 1).
std::vector<std::byte> random_values(const OperandSpec& spec) {
  const auto count = static_cast<size_t>(spec.shape.num_elems());
  std::vector<std::byte> bytes(count * dtype_bytes(spec.dtype));
  std::mt19937 random(3);
  for (size_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(random()) * 0x1p-31f - 1.0f;
    if (spec.dtype == DType::kBF16) {
      const BFloat16 rounded(value);
      std::memcpy(bytes.data() + i * sizeof rounded, &rounded, sizeof rounded);
    } else {
      std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
    }
  }
  return bytes;
}

/// How often a program contains compute and communication.
struct Mix {
  int64_t num_compute = 0;
  int64_t num_comm = 0;
};

class ContentionTimer {
 public:
  ContentionTimer(const DeviceCommOptions& options, ComputeTask compute, CommAlgorithm algorithm)
      : options_(options), compute_(std::move(compute)) {
    const int64_t largest =
        *std::max_element(options.sizes_bytes.begin(), options.sizes_bytes.end());
    comm_ = {.kind = CommKind::kAllGather,
             .algorithm = algorithm,
             .placement = {options.num_ranks, 1, options.num_ranks},
             .bytes = std::min(kContentionBytes, largest)};
  }

  /// `otherwise` if the executor replaces copy engines.
  SharedRates measure(const SharedRates& otherwise) {
    constexpr Mix kCompute{4, 0};
    constexpr Mix kComm{0, 4};
    const std::vector<double> alone = time({kCompute, kComm});
    if (has_notes_ && uses_copy_engine(comm_.algorithm)) {
      return otherwise;
    }
    const double compute_ns = alone[0] / 4;
    const double comm_ns = alone[1] / 4;
    const auto count = [](double long_ns, double one_ns) {
      return std::max<int64_t>(1, std::llround(long_ns / one_ns));
    };
    const double short_ns =
        std::max({static_cast<double>(options_.program_ns), compute_ns, comm_ns});
    const double long_ns = 4 * short_ns;
    const Mix comm_longer{count(short_ns, compute_ns), count(long_ns, comm_ns)};
    const Mix compute_longer{count(long_ns, compute_ns), count(short_ns, comm_ns)};
    const std::vector<double> ns = time({{comm_longer.num_compute, 0},
                                         {0, comm_longer.num_comm},
                                         comm_longer,
                                         {compute_longer.num_compute, 0},
                                         {0, compute_longer.num_comm},
                                         compute_longer});
    return shared_rates(
        {.comm_longer = {ns[0], ns[1], ns[2]}, .compute_longer = {ns[3], ns[4], ns[5]}});
  }

 private:
  std::vector<double> time(const std::vector<Mix>& mixes) {
    RankTimer timer(options_.make_ranks(by_rank(options_.num_ranks,
                                                [&](int rank) { return programs(rank, mixes); })),
                    options_.timer);
    for (size_t i = 0; i < compute_.names.size(); ++i) {
      timer.write(compute_.names[i], random_values(compute_.spec.operands[i]));
    }
    has_notes_ = !timer.notes().empty();
    std::vector<double> ns;
    for (size_t i = 0; i < mixes.size(); ++i) {
      ns.push_back(static_cast<double>(timer.time(i).ns));
    }
    return ns;
  }

  std::vector<Program> programs(int rank, const std::vector<Mix>& mixes) const {
    std::vector<Program> programs;
    for (const Mix& mix : mixes) {
      TimedProgram program(rank, options_.num_ranks, elems_for(options_));
      std::vector<BufferRange> ranges;
      for (size_t i = 0; i < compute_.names.size(); ++i) {
        const OperandSpec& spec = compute_.spec.operands[i];
        ranges.push_back({program.add_buffer(compute_.names[i], spec.dtype, spec.shape), 0,
                          spec.shape.num_elems()});
      }
      program.add_compute(compute_.spec, ranges, mix.num_compute);
      program.add_calls(comm_, mix.num_comm);
      programs.push_back(program.take());
    }
    return programs;
  }

  const DeviceCommOptions& options_;
  ComputeTask compute_;
  CommSpec comm_;
  bool has_notes_ = false;
};

}  // namespace

std::vector<int> timed_group_sizes(int num_ranks) {
  std::vector<int> sizes;
  for (int size = 2; size < num_ranks; size *= 2) {
    sizes.push_back(size);
  }
  if (num_ranks >= 2) {
    sizes.push_back(num_ranks);
  }
  return sizes;
}

int64_t num_comm_points(const DeviceCommOptions& options) {
  int64_t count = 0;
  for (const int size : timed_group_sizes(options.num_ranks)) {
    count += std::ssize(specs_of(options, size));
  }
  return count;
}

std::vector<CommPoint> time_device_communication(const DeviceCommOptions& options) {
  check(!options.sizes_bytes.empty(), "no sizes to communicate");
  std::vector<CommPoint> points;
  for (const int size : timed_group_sizes(options.num_ranks)) {
    const std::vector<CommSpec> specs = specs_of(options, size);
    std::vector<int64_t> counts;
    for (const CommSpec& spec : specs) {
      counts.push_back(repetitions(options, analytic_comm_ns(options.cluster, spec)));
    }
    RankTimer timer(
        options.make_ranks(by_rank(
            size, [&](int rank) { return comm_programs(options, rank, size, specs, counts); })),
        options.timer);
    timer.measure_overhead(0, 1, kOverheadCalls);
    const bool no_copies = !timer.notes().empty();
    for (size_t i = 0; i < specs.size(); ++i) {
      if (!no_copies || !uses_copy_engine(specs[i].algorithm)) {
        points.push_back({.spec = specs[i], .timing = per_call(timer.time(i + 2), counts[i])});
      }
      if (options.on_point) {
        options.on_point();
      }
    }
  }
  return points;
}

Contention time_contention(const DeviceCommOptions& options, const Contention& otherwise) {
  // On a GPU a product of a large model's layer; on a CPU it is as small as in its tests.
  const bool is_small = options.dtype == DType::kF32;
  const ComputeTask products =
      is_small ? product(options.dtype, 128, 64, 128) : product(options.dtype, 8192, 4096, 4096);
  const ComputeTask sums = sum(options.dtype, is_small ? 1 << 16 : int64_t{1} << 27);
  Contention contention = otherwise;
  const auto measure = [&](const ComputeTask& compute, CommAlgorithm algorithm,
                           SharedRates& rates) {
    rates = ContentionTimer(options, compute, algorithm).measure(rates);
  };
  measure(products, CommAlgorithm::kRing, contention.gemm_and_sm_comm);
  measure(sums, CommAlgorithm::kRing, contention.memory_bound_and_sm_comm);
  if (options.copy_engines) {
    measure(products, CommAlgorithm::kCopyEngineDirect, contention.compute_and_copy_engine);
  }
  return contention;
}

SharedRates shared_rates(const TogetherTimes& times) {
  constexpr double kMost = 0.95;  // a rate below a twentieth is a disturbance, not a rate
  const double p = std::clamp(
      (times.comm_longer.together_ns - times.comm_longer.comm_ns) / times.comm_longer.compute_ns,
      0.0, kMost);
  const double q = std::clamp((times.compute_longer.together_ns - times.compute_longer.compute_ns) /
                                  times.compute_longer.comm_ns,
                              0.0, kMost);
  // p u = 1 - v and q v = 1 - u, for the rates u of compute and v of communication.
  const double both = 1 - p * q;
  const auto three_digits = [](double rate) { return std::round(1e3 * rate) / 1e3; };
  return {.compute = three_digits((1 - q) / both), .communication = three_digits((1 - p) / both)};
}

}  // namespace braid
