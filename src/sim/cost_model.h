#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "comm/links.h"
#include "ir/program.h"
#include "ops/op_traits.h"
#include "sim/cluster.h"

/// What a task takes, before it runs: asked by the simulator, by `braid plan` and by passes ("is
/// this worth splitting?"). All durations are integer nanoseconds and depend on nothing but the
/// question and the model, so equal programs have equal simulated times. docs/profiles.md has the
/// formulas and where their numbers come from.
namespace braid {

/// Where a duration comes from, best first.
enum class CostSource : uint8_t {
  kMeasured,      ///< this very spec was measured
  kInterpolated,  ///< between measured specs of this op
  kExtrapolated,  ///< from measured specs of this op, all larger or all smaller
  kAnalytic,      ///< from the data sheet
};

inline constexpr size_t kNumCostSources = 4;

/// "measured", "interpolated", "extrapolated", "analytic".
std::string_view cost_source_name(CostSource source);

/// No duration is longer: 31 years, of which a few can be added.
inline constexpr int64_t kMaxCostNs = 1'000'000'000'000'000'000;

/// To the nearest nanosecond, from 0 to kMaxCostNs.
int64_t round_cost_ns(double ns);

struct Cost {
  int64_t ns = 0;
  CostSource source = CostSource::kAnalytic;

  friend bool operator==(const Cost&, const Cost&) = default;
};

enum class CommKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,    ///< to one rank
  kSendRecv,  ///< one message between two ranks, or each rank's to its neighbour
};

inline constexpr size_t kNumCommKinds = 7;

enum class CommAlgorithm : uint8_t {
  kRing,              ///< SMs of every rank pass pieces on to the next rank
  kTree,              ///< SMs; all-reduce, reduce and broadcast in logarithmic depth
  kDirect,            ///< SMs of every rank exchange with all others at once; inside a node
  kCopyEngineRing,    ///< copy engines pass pieces on to the neighbour; inside a node
  kCopyEngineDirect,  ///< copy engines push to all others, one after the other; inside a node
};

inline constexpr size_t kNumCommAlgorithms = 5;

/// Names as in program text and profiles: "all_reduce", "ring", "copy_engine_ring", ...
std::string_view comm_kind_name(CommKind kind);
std::string_view comm_algorithm_name(CommAlgorithm algorithm);
std::optional<CommKind> parse_comm_kind(std::string_view name);
std::optional<CommAlgorithm> parse_comm_algorithm(std::string_view name);

/// Whether the algorithm runs on copy engines, so that it takes no SM from compute.
bool uses_copy_engine(CommAlgorithm algorithm);

/// One communication of a group. `bytes` is the whole buffer, as nccl-tests counts: what a rank
/// holds of an all-reduce, a reduce or a broadcast, what it holds after an all-gather, before a
/// reduce-scatter, what it sends to all ranks together (itself included) in an all-to-all, one
/// message of a send.
struct CommSpec {
  CommKind kind = CommKind::kAllReduce;
  CommAlgorithm algorithm = CommAlgorithm::kRing;
  GroupPlacement placement;
  int64_t bytes = 0;

  friend bool operator==(const CommSpec&, const CommSpec&) = default;
};

/// Empty if such a communication exists, else why not: copy engines cannot add, and reach inside a
/// node only.
std::string comm_fault(const CommSpec& spec);

/// Rates of two things that run at the same time, each as a part of its rate alone, in (0, 1].
struct SharedRates {
  double compute = 1.0;
  double communication = 1.0;

  friend bool operator==(const SharedRates&, const SharedRates&) = default;
};

/// What compute and communication cost each other on one device. What SMs that send take from
/// compute is proportional to their number up to `comm_sms` (sim/contention.h).
struct Contention {
  SharedRates gemm_and_sm_comm;          ///< matrix products and attention, beside SMs that send
  SharedRates memory_bound_and_sm_comm;  ///< kernels that memory limits, beside SMs that send
  SharedRates compute_and_copy_engine;   ///< any compute, beside copy engines
  int comm_sms = 24;                     ///< SMs that sent when these rates were measured

  friend bool operator==(const Contention&, const Contention&) = default;
};

/// Const functions may be called by several threads at once.
class CostModel {
 public:
  virtual ~CostModel() = default;

  /// Duration of a compute or copy spec on a device that does nothing else, operands not in its
  /// cache; a copy to or from the host is `host_copy_cost`. Throws InternalError for a
  /// communication op, and for a spec that its op refuses.
  virtual Cost task_cost(const OpSpec& spec) const = 0;
  int64_t task_ns(const OpSpec& spec) const { return task_cost(spec).ns; }

  /// Duration of a communication alone, from the moment when all ranks have come: latency plus
  /// bytes over bandwidth. 0 for a group of one rank. Throws InternalError with `comm_fault`.
  virtual Cost comm_cost(const CommSpec& spec) const = 0;
  int64_t comm_ns(const CommSpec& spec) const { return comm_cost(spec).ns; }

  /// A copy between device and host memory by a copy engine.
  virtual Cost host_copy_cost(HostCopy direction, int64_t bytes) const = 0;

  virtual const Contention& contention() const = 0;
  virtual const Cluster& cluster() const = 0;
  /// Links that are emulated between ranks of a CPU: communication takes the time of its link, and
  /// `comm_cost` is what it takes of a core meanwhile. Null: there are none.
  virtual const LinkOptions* links() const { return nullptr; }
  /// Least time from one small task to the next on a stream.
  virtual int64_t launch_ns() const = 0;
  /// Host time per step besides its tasks.
  virtual int64_t step_overhead_ns() const = 0;
  /// One line for people: "h200x8, analytic".
  virtual std::string description() const = 0;

 protected:
  CostModel() = default;
  CostModel(const CostModel&) = default;
  CostModel& operator=(const CostModel&) = default;
};

/// The faster of ring and tree, as NCCL chooses.
struct CommChoice {
  CommSpec spec;
  Cost cost;
};
CommChoice cheapest_algorithm(const CostModel& model, CommKind kind,
                              const GroupPlacement& placement, int64_t bytes);
Cost cheapest_comm(const CostModel& model, CommKind kind, const GroupPlacement& placement,
                   int64_t bytes);

/// A communication of a program.
struct ProgramComm {
  CommSpec spec;
  Cost cost;      ///< until it has ended, no link being in use by others
  Cost own_cost;  ///< without emulated links: equal to `cost` where it has none
  LinkTime link;  ///< of CostModel::links
};

/// Whether copy engines can carry what ranks in these places communicate: GPUs of one node.
bool has_copy_engines(const CostModel& model, const GroupPlacement& place);

/// The communication that a spec asks for when `rank` calls it in this group: of a message, between
/// its two ends; by copy engines where it says so and they can. It ends when both its link and its
/// own work have. Throws InternalError for a spec that does not communicate, and for a peer outside
/// of the group.
ProgramComm comm_of(const CostModel& model, const OpSpec& spec, int rank, const Group& group);

/// What one task of a program takes alone: `task_cost`, or for communication `comm_of` with the
/// group's place in the model's cluster (of a message: the place of its two ends). Depends on
/// the task's spec and the program's groups and rank only. Throws InternalError as those do.
Cost program_task_cost(const CostModel& model, const Program& program, TaskId task);

/// The kind of a communication op; nullopt for one that is none. Throws InternalError if there is
/// no such op.
std::optional<CommKind> comm_kind_of(const OpSpec& spec);

}  // namespace braid
