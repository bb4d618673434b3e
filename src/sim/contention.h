#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/cost_model.h"
#include "sim/op_family.h"

namespace braid {

/// Rates in the simulator are whole parts of the rate alone, so that equal inputs give equal times
/// on any machine.
inline constexpr int64_t kFullRate = int64_t{1} << 16;

/// A rate in (0, 1] in parts of kFullRate, to the nearest and at least one.
int64_t rate_parts(double rate);

/// What a communication takes from others while it runs.
struct CommDemand {
  int sms = 0;             ///< 0: copy engines do it
  int64_t bytes_part = 0;  ///< of kFullRate: part of its time alone in which bytes flow; the rest
                           ///< is latency, which nothing lengthens
  std::array<int64_t, 2> load{};  ///< by LinkKind, of kFullRate: part of the link that it needs for
                                  ///< not being slowed, averaged over its time alone
};

enum class LinkKind : uint8_t { kIntraNode, kInterNode };
inline constexpr size_t kNumLinkKinds = 2;

/// The demand of a communication that takes `cost_ns` alone. SMs are in proportion to the bytes per
/// second that it moves: `Contention::comm_sms` at the rate of the link inside a node (4 blocks
/// push 147 of 450 GB/s, 8 push 292: about what a network link needs, and what NVLink does not).
CommDemand comm_demand(const CostModel& model, const CommSpec& spec, int64_t cost_ns);

/// The same of a communication over emulated links: of that time, threads copy and sum for `own_ns`
/// on the cores of their ranks, and the link is not shared but waited for. As if all of
/// `Contention::comm_sms` were what one core has, of which compute keeps at least half.
CommDemand core_demand(const CostModel& model, int64_t own_ns, int64_t cost_ns);

/// Rate of a communication on a link of which all that run need `total_load` together:
///   1 / (latency part + bytes part * max(1, total load)).
int64_t shared_link_rate(const CommDemand& demand, int64_t total_load);

/// How compute is slowed by the SMs that send beside it, by family of op and number of SMs:
///   1 - (1 - measured rate) * min(1, SMs / comm_sms).
/// Matrix products and attention, which want all SMs, have one measured rate, kernels that memory
/// limits another. Also how communication is slowed by compute.
class ContentionTable {
 public:
  explicit ContentionTable(const Contention& contention);

  int64_t compute_rate(OpFamily family, int sms) const;
  /// Of communication by SMs beside compute of that family.
  int64_t comm_rate(OpFamily family) const;
  /// Of compute beside copies to or from the host, and the other way round.
  int64_t compute_beside_copies() const { return compute_beside_copies_; }
  int64_t copies_beside_compute() const { return copies_beside_compute_; }
  /// Whether compute changes the rate of communication or copies at all.
  bool compute_slows_others() const { return compute_slows_others_; }

 private:
  std::vector<int64_t> product_rates_;  ///< by number of SMs, the last for all larger ones
  std::vector<int64_t> memory_rates_;
  int64_t comm_beside_products_;
  int64_t comm_beside_memory_;
  int64_t compute_beside_copies_;
  int64_t copies_beside_compute_;
  bool compute_slows_others_;
};

}  // namespace braid
