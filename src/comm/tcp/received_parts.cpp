#include "comm/tcp/received_parts.h"

#include <cstdint>
#include <cstring>

#include "base/errors.h"
#include "comm/reduce.h"

namespace braid {
namespace {

class Result {
 public:
  Result(const CommCall& call, size_t party, const std::vector<const std::byte*>& parts)
      : call_(call), party_(party), parts_(parts) {}

  void write() const {
    const auto n = static_cast<int64_t>(parts_.size());
    switch (call_.op) {
      case CommOp::kAllReduce:
      case CommOp::kAllReduceMax:
        return sum(call_.send_elems);
      case CommOp::kReduce:
        return reduce();
      case CommOp::kReduceScatter:
        return sum(call_.recv_elems);
      case CommOp::kAllGather:
        return gather(call_.send_elems);
      case CommOp::kAllToAll:
        return gather(call_.send_elems / n);
      case CommOp::kBroadcast:
        return copy(static_cast<size_t>(call_.root), 0, call_.recv_elems);
      case CommOp::kRingShift: {
        const int64_t from = ((static_cast<int64_t>(party_) - call_.shift) % n + n) % n;
        return copy(static_cast<size_t>(from), 0, call_.recv_elems);
      }
      case CommOp::kRecv:
        return copy(0, 0, call_.recv_elems);
      case CommOp::kDispatchRows:
      case CommOp::kCombineRows:
        throw_internal_error("{}: rows are exchanged by row_exchange.h", describe_call(call_));
      case CommOp::kSend:
        return;
    }
  }

 private:
  void copy(size_t from, int64_t to, int64_t num_elems) const {
    std::byte* const y = call_.recv + static_cast<size_t>(to) * dtype_bytes(call_.dtype);
    if (num_elems > 0 && y != parts_[from]) {
      std::memcpy(y, parts_[from], static_cast<size_t>(num_elems) * dtype_bytes(call_.dtype));
    }
  }

  void gather(int64_t block) const {
    for (size_t i = 0; i < parts_.size(); ++i) {
      copy(i, static_cast<int64_t>(i) * block, block);
    }
  }

  void sum(int64_t count) const {
    sum_elems({.sources = parts_,
               .targets = {&call_.recv, 1},
               .dtype = call_.dtype,
               .begin = 0,
               .count = count,
               .takes_largest = call_.op == CommOp::kAllReduceMax});
  }

  void reduce() const {
    if (static_cast<int64_t>(party_) == call_.root) {
      sum(call_.send_elems);
    } else if (call_.recv_elems > 0) {
      std::memset(call_.recv, 0, static_cast<size_t>(call_.num_bytes()));
    }
  }

  const CommCall& call_;
  size_t party_;
  const std::vector<const std::byte*>& parts_;
};

}  // namespace

void write_result(const CommCall& call, size_t party, const std::vector<const std::byte*>& parts) {
  Result(call, party, parts).write();
}

}  // namespace braid
