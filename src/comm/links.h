#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/comm_call.h"
#include "ir/program.h"

namespace braid {

/// The link between a rank and the ranks of its groups of one kind.
struct LinkSpec {
  int64_t latency_ns = 0;
  double bytes_per_s = 0;  ///< in each direction; 0: no limit

  bool is_limited() const { return latency_ns > 0 || bytes_per_s > 0; }
};

/// Emulated links, for machines without real ones, so that communication takes a realistic time:
/// one per rank and kind of group, with one lane for each direction (out and in).
struct LinkOptions {
  static constexpr size_t kNumKinds = static_cast<size_t>(GroupKind::kWorld) + 1;

  std::array<LinkSpec, kNumKinds> by_kind = {};  ///< by GroupKind

  LinkSpec& operator[](GroupKind kind) { return by_kind[static_cast<size_t>(kind)]; }
  const LinkSpec& operator[](GroupKind kind) const { return by_kind[static_cast<size_t>(kind)]; }
};

/// The bytes that a communication of `num_bytes` (CommCall::num_bytes: the larger operand) among n
/// ranks moves over each lane that it uses, for the usual algorithms:
///   all_reduce                              2 (n - 1) / n of them (a ring, or scatter and gather)
///   all_gather, reduce_scatter, all_to_all  (n - 1) / n
///   broadcast, reduce, send, recv           all (broadcasts as pieces down a chain)
///   ring_shift                              all; none if it shifts by a multiple of n
double lane_bytes(const CommCall& call);

/// The time of a communication on each lane that it uses, from when the lane is free: its bytes
/// occupy the lane for `busy_ns` and arrive `latency_ns` later. Zeros: no link delays it.
struct LinkTime {
  int64_t busy_ns = 0;
  int64_t latency_ns = 0;

  bool is_limited() const { return busy_ns > 0 || latency_ns > 0; }
  int64_t alone_ns() const { return busy_ns + latency_ns; }
  friend bool operator==(const LinkTime&, const LinkTime&) = default;
};

/// Zeros for a group of one rank, too.
LinkTime link_time(const LinkOptions& links, const CommCall& call);

/// Computes the end times of transfers over emulated links. A lane carries one transfer at a time:
/// a transfer starts when all its ranks have arrived and all lanes that it needs are free, in the
/// order in which transfers became complete. It occupies its lanes for bytes / bytes_per_s, and its
/// data arrives latency_ns after that. So transfers of one rank over one kind of link share its
/// bandwidth; different kinds of links and the two directions are independent.
class LinkSchedule {
 public:
  LinkSchedule(const LinkOptions& options, int num_ranks);

  /// All ranks of a call have arrived at `now_ns`. Returns the time when the data arrives.
  /// `senders` need their lane out, `receivers` their lane in.
  int64_t add(const CommCall& call, std::span<const int> senders, std::span<const int> receivers,
              int64_t now_ns);

 private:
  struct Link {
    int64_t out_free_ns = 0;
    int64_t in_free_ns = 0;
  };
  Link& link(GroupKind kind, int rank);

  LinkOptions options_;
  size_t num_ranks_;
  std::vector<Link> links_;  // by kind and rank
};

}  // namespace braid
