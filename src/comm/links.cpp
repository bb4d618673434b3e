#include "comm/links.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "comm/row_exchange.h"

namespace braid {

namespace {

/// Bytes that a member dispatches to all, or gets back from all.
double exchanged_bytes(const CommCall& call) {
  const int64_t rows = call.op == CommOp::kDispatchRows ? call.rows.send_rows : call.rows.recv_rows;
  return static_cast<double>(rows * call.rows.copies) * static_cast<double>(bytes_per_row(call));
}

}  // namespace

double lane_bytes(const CommCall& call) {
  const auto bytes = static_cast<double>(call.num_bytes());
  const auto n = static_cast<int64_t>(call.group->ranks.size());
  const double others = static_cast<double>(n - 1) / static_cast<double>(n);
  switch (call.op) {
    case CommOp::kAllReduce:
    case CommOp::kAllReduceMax:
      return 2.0 * others * bytes;
    case CommOp::kAllGather:
    case CommOp::kReduceScatter:
    case CommOp::kAllToAll:
      return others * bytes;
    case CommOp::kDispatchRows:  // with equal loads of the ranks
    case CommOp::kCombineRows:
      return others * exchanged_bytes(call);
    case CommOp::kRingShift:
      return call.shift % n == 0 ? 0.0 : bytes;
    default:
      return bytes;
  }
}

LinkTime link_time(const LinkOptions& links, const CommCall& call) {
  const LinkSpec& link = links[call.group->kind];
  const double bytes = call.group->ranks.size() > 1 ? lane_bytes(call) : 0.0;
  if (!link.is_limited() || bytes == 0) {
    return {};
  }
  const double busy_ns = link.bytes_per_s > 0 ? bytes / link.bytes_per_s * 1e9 : 0.0;
  return {.busy_ns = static_cast<int64_t>(std::ceil(busy_ns)), .latency_ns = link.latency_ns};
}

LinkSchedule::LinkSchedule(const LinkOptions& options, int num_ranks)
    : options_(options),
      num_ranks_(static_cast<size_t>(num_ranks)),
      links_(LinkOptions::kNumKinds * num_ranks_) {
  for (const LinkSpec& spec : options.by_kind) {
    check(spec.latency_ns >= 0 && spec.bytes_per_s >= 0 && std::isfinite(spec.bytes_per_s),
          "a link of {} ns and {} bytes/s", spec.latency_ns, spec.bytes_per_s);
  }
}

LinkSchedule::Link& LinkSchedule::link(GroupKind kind, int rank) {
  return links_[static_cast<size_t>(kind) * num_ranks_ + static_cast<size_t>(rank)];
}

int64_t LinkSchedule::add(const CommCall& call, std::span<const int> senders,
                          std::span<const int> receivers, int64_t now_ns) {
  const GroupKind kind = call.group->kind;
  const LinkTime time = link_time(options_, call);
  if (!time.is_limited()) {
    return now_ns;
  }
  int64_t start_ns = now_ns;
  for (const int rank : senders) {
    start_ns = std::max(start_ns, link(kind, rank).out_free_ns);
  }
  for (const int rank : receivers) {
    start_ns = std::max(start_ns, link(kind, rank).in_free_ns);
  }
  const int64_t free_ns = start_ns + time.busy_ns;
  for (const int rank : senders) {
    link(kind, rank).out_free_ns = free_ns;
  }
  for (const int rank : receivers) {
    link(kind, rank).in_free_ns = free_ns;
  }
  return free_ns + time.latency_ns;
}

}  // namespace braid
