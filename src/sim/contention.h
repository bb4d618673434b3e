#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/expert_exchange.h"
#include "sim/cost_model.h"
#include "sim/op_family.h"

namespace braid {

/// Rates in the simulator are integer fractions of the rate alone, so that equal inputs give equal
/// times on every machine.
inline constexpr int64_t kFullRate = int64_t{1} << 16;

/// Converts a rate in (0, 1] to units of 1 / kFullRate: rounded to nearest, at least one.
int64_t rate_parts(double rate);

/// Whether kernels of the family fill all SMs of a device: matrix products and attention.
bool wants_all_sms(OpFamily family);

/// The links of a device, each with two directions: to its node, to the network, and its share of
/// the links above the units of an oversubscribed network (NetworkLevel). Communications that leave
/// small units and such that leave large ones share the last as if it were one.
enum class LinkKind : uint8_t { kIntraNode, kInterNode, kAboveUnits };
inline constexpr size_t kNumLinkKinds = 3;

/// The resources that a communication uses while it runs. At first it waits for its latency, then
/// its bytes flow.
struct CommDemand {
  int sms = 0;             ///< 0: copy engines move the bytes; without those of `row_exchanges`
  int row_exchanges = 0;   ///< 1: an exchange of rows of experts, on SMs of its own
  int64_t bytes_part = 0;  ///< in units of 1 / kFullRate: the part of its time alone in which bytes
                           ///< flow
  /// By LinkKind, in units of 1 / kFullRate: the part of the link that it needs while its bytes
  /// flow, to take no longer than alone.
  std::array<int64_t, kNumLinkKinds> load{};

  bool uses_links() const {
    return std::any_of(load.begin(), load.end(), [](int64_t part) { return part > 0; });
  }
};

/// The demand of a communication that takes `cost_ns` alone. SMs are in proportion to the bytes per
/// second that it moves: `Contention::comm_sms` at the rate of the link inside a node (4 blocks
/// push 147 of 450 GB/s, 8 push 292: about enough for a network link, but not for NVLink).
/// `slowdown`: of its bytes, by the SMs that it lacks.
CommDemand comm_demand(const CostModel& model, const CommSpec& spec, int64_t cost_ns,
                       double slowdown = 1.0);

/// How much longer the bytes of a communication take if its kernels may take only `max_sms` SMs (0:
/// no limit): at least 1.
double slowdown_by_sms(const CostModel& model, const CommSpec& spec, int max_sms);

/// The time of an exchange's bytes by `sms` multiprocessors, relative to that by kRowExchangeSms.
/// On 4 H100 8, 16 and 24 blocks moved 178, 307 and 324 GB/s over NVLink (bench/notes.md).
double row_exchange_slowdown(int sms);

/// The cost of a communication whose bytes take so much longer.
Cost slowed(const CostModel& model, const CommChoice& choice, double slowdown);

/// The same for a communication over emulated links: for `own_ns` of that time, threads copy and
/// sum on the cores of their ranks; a communication waits for a link and does not share it. The
/// model treats all of `Contention::comm_sms` as one core, of which compute keeps at least half.
CommDemand core_demand(const CostModel& model, int64_t own_ns, int64_t cost_ns);

/// The most that each of several communications gets of a link that they need in part, as they
/// share it evenly: whoever needs less gets that, and the others share the rest evenly (max-min
/// fairness). Does not depend on the order of `loads`, which is used up. kFullRate if all fit.
int64_t fair_share(std::span<int64_t> loads);

/// The slowdown of compute by the SMs that send at the same time, by family of op and number of
/// SMs:
///   1 - (1 - measured rate) * min(1, SMs / comm_sms).
/// Matrix products and attention, which use all SMs, have one measured rate; memory-bound kernels
/// have another. Also the slowdown of communication by compute.
/// Exchanges of rows of experts have rates of their own (`Contention::compute_and_row_exchange`),
/// measured with kRowExchangeSms; with other numbers compute loses in proportion.
class ContentionTable {
 public:
  /// `exchange_sms`: what exchanges of rows take.
  explicit ContentionTable(const Contention& contention, int exchange_sms = kRowExchangeSms);

  int64_t compute_rate(OpFamily family, int sms) const;
  /// The rate of communication by SMs while compute of that family runs.
  int64_t comm_rate(OpFamily family) const;
  /// The rate of compute beside an exchange of rows, by family.
  int64_t compute_beside_rows(OpFamily family) const;
  /// The rate at which an exchange beside compute moves rows within a node. A slower link may still
  /// bound it.
  int64_t rows_beside_compute() const { return rows_beside_compute_; }
  /// The rate of compute during copies to or from the host, and of copies during compute.
  int64_t compute_beside_copies() const { return compute_beside_copies_; }
  int64_t copies_beside_compute() const { return copies_beside_compute_; }
  /// Whether compute changes the rate of communication on a device with so many exchanges of rows.
  bool compute_slows_comm(int row_exchanges) const {
    return compute_slows_sends_ || (row_exchanges > 0 && rows_beside_compute_ < kFullRate);
  }

 private:
  std::vector<int64_t> product_rates_;  ///< by number of SMs; the last entry is for all larger
                                        ///< numbers
  std::vector<int64_t> memory_rates_;
  int64_t comm_beside_products_;
  int64_t comm_beside_memory_;
  int64_t products_beside_rows_;
  int64_t memory_beside_rows_;
  int64_t rows_beside_compute_;
  int64_t compute_beside_copies_;
  int64_t copies_beside_compute_;
  bool compute_slows_sends_;
};

}  // namespace braid
