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

/// Predicts the duration of a task for the simulator, `braid plan` and passes ("is this worth
/// splitting?"). All durations are integer nanoseconds and depend only on the arguments and the
/// model, so equal programs have equal simulated times. docs/profiles.md has the formulas and the
/// origin of their numbers.
namespace braid {

/// The source of a duration, best first.
enum class CostSource : uint8_t {
  kMeasured,      ///< this exact spec was measured
  kInterpolated,  ///< between measured specs of this op
  kExtrapolated,  ///< from measured specs of this op, all larger or all smaller
  kAnalytic,      ///< from the data sheet
};

inline constexpr size_t kNumCostSources = 4;

/// "measured", "interpolated", "extrapolated", "analytic".
std::string_view cost_source_name(CostSource source);

/// The longest duration: 31 years, small enough that a few of them can be added.
inline constexpr int64_t kMaxCostNs = 1'000'000'000'000'000'000;

/// Rounds to the nearest nanosecond, limited to [0, kMaxCostNs].
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
  kSendRecv,  ///< one message between two ranks, or one from each rank to its neighbour
};

inline constexpr size_t kNumCommKinds = 7;

enum class CommAlgorithm : uint8_t {
  kRing,              ///< SMs of every rank forward pieces to the next rank
  kTree,              ///< SMs; all-reduce, reduce and broadcast in logarithmic depth
  kDirect,            ///< SMs of every rank exchange with all others at once; inside a node
  kCopyEngineRing,    ///< copy engines forward pieces to the neighbour; inside a node
  kCopyEngineDirect,  ///< copy engines push to all other ranks, one after the other; inside a node
  kNvls,              ///< switches of a node sum (NVLink SHARP): all-reduce inside a node
  kNvlsTree,          ///< the same in each node, and a tree between nodes
  kPat,               ///< parallel aggregated trees: gathers and scatters of one rank per node
};

inline constexpr size_t kNumCommAlgorithms = 8;

/// Names as in program text and profiles: "all_reduce", "ring", "copy_engine_ring", ...
std::string_view comm_kind_name(CommKind kind);
std::string_view comm_algorithm_name(CommAlgorithm algorithm);
std::optional<CommKind> parse_comm_kind(std::string_view name);
std::optional<CommAlgorithm> parse_comm_algorithm(std::string_view name);

/// Whether the algorithm runs on copy engines, and so takes no SM from compute.
bool uses_copy_engine(CommAlgorithm algorithm);

/// One communication of a group. `bytes` is the size of the whole buffer, as nccl-tests counts: for
/// an all-reduce, reduce or broadcast a rank's buffer; for an all-gather a rank's result; for a
/// reduce-scatter a rank's input; for an all-to-all what a rank sends to all ranks (itself
/// included); for a send one message.
struct CommSpec {
  CommKind kind = CommKind::kAllReduce;
  CommAlgorithm algorithm = CommAlgorithm::kRing;
  GroupPlacement placement;
  int64_t bytes = 0;

  friend bool operator==(const CommSpec&, const CommSpec&) = default;
};

/// Why the communication is impossible; empty if it is possible. Copy engines cannot add, and only
/// work inside a node. Whether a cluster's switches can sum is not asked: `has_algorithm`.
std::string comm_fault(const CommSpec& spec);

/// Whether NCCL has this algorithm for the spec on that cluster.
bool has_algorithm(const Cluster& cluster, const CommSpec& spec);

/// Rates of two activities that run at the same time, each as a fraction of its rate alone, in (0,
/// 1].
struct SharedRates {
  double compute = 1.0;
  double communication = 1.0;

  friend bool operator==(const SharedRates&, const SharedRates&) = default;
};

/// The slowdown of compute and communication by each other on one device. The effect of sending SMs
/// on compute is proportional to their number up to `comm_sms` (sim/contention.h).
struct Contention {
  SharedRates gemm_and_sm_comm;          ///< matrix products and attention, with SMs that send
  SharedRates memory_bound_and_sm_comm;  ///< memory-bound kernels, with SMs that send
  SharedRates compute_and_copy_engine;   ///< any compute, with copy engines
  int comm_sms = 24;                     ///< SMs that sent when these rates were measured
  /// Matrix products and attention, with an exchange of rows of experts beside them, which takes
  /// kRowExchangeSms of the SMs.
  SharedRates compute_and_row_exchange;

  friend bool operator==(const Contention&, const Contention&) = default;
};

/// Several threads may call const functions at once.
class CostModel {
 public:
  virtual ~CostModel() = default;

  /// Duration of a compute or copy spec on an otherwise idle device, with operands outside its
  /// cache; a copy to or from the host is `host_copy_cost`. Throws InternalError for a
  /// communication op, and for a spec that its op rejects.
  virtual Cost task_cost(const OpSpec& spec) const = 0;
  int64_t task_ns(const OpSpec& spec) const { return task_cost(spec).ns; }

  /// Duration of a communication alone, from the time when all ranks have arrived: latency plus
  /// bytes over bandwidth. 0 for a group of one rank. Throws InternalError with `comm_fault`.
  virtual Cost comm_cost(const CommSpec& spec) const = 0;
  int64_t comm_ns(const CommSpec& spec) const { return comm_cost(spec).ns; }

  /// A copy between device and host memory by a copy engine.
  virtual Cost host_copy_cost(HostCopy direction, int64_t bytes) const = 0;

  virtual const Contention& contention() const = 0;
  virtual const Cluster& cluster() const = 0;
  /// Emulated links between ranks of a CPU: communication takes the time of its link, and
  /// `comm_cost` is the time in which it uses a core. Null: there are none.
  virtual const LinkOptions* links() const { return nullptr; }
  /// Minimum time from one small task to the next on a stream.
  virtual int64_t launch_ns() const = 0;
  /// Host time per step in addition to its tasks.
  virtual int64_t step_overhead_ns() const = 0;
  /// One line for people: "h200x8, analytic".
  virtual std::string description() const = 0;

 protected:
  CostModel() = default;
  CostModel(const CostModel&) = default;
  CostModel& operator=(const CostModel&) = default;
};

/// The fastest of ring, tree, NVLink SHARP and PAT, as NCCL chooses.
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
  double slowdown = 1.0;  ///< of its bytes, if the group limits the SMs of its kernels
  Cost cost;              ///< until it has ended, if no other communication uses its links
  Cost own_cost;          ///< without emulated links: equal to `cost` if there are none
  LinkTime link;          ///< of CostModel::links
};

/// Whether copy engines can move the data between ranks in these places: GPUs of one node.
bool has_copy_engines(const CostModel& model, const GroupPlacement& place);

/// The communication of a spec when `rank` calls it in this group: for a message, between its two
/// ends; by copy engines if the spec requests them and they can do it. It ends when both its link
/// and its own work have ended. Throws InternalError for a spec that does not communicate, and for
/// a peer outside the group.
ProgramComm comm_of(const CostModel& model, const OpSpec& spec, int rank, const Group& group);

/// The duration of one task of a program alone: `task_cost`, or for communication `comm_of` with
/// the group's place in the model's cluster (for a message: the place of its two ends). Depends
/// only on the task's spec and the program's groups and rank. Throws InternalError as those
/// functions do.
Cost program_task_cost(const CostModel& model, const Program& program, TaskId task);

/// The kind of a communication op; nullopt for other ops. Throws InternalError if there is no such
/// op.
std::optional<CommKind> comm_kind_of(const OpSpec& spec);

}  // namespace braid
