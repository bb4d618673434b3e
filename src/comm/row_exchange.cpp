#include "comm/row_exchange.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/errors.h"
#include "comm/reduce.h"
#include "ops/expert_exchange.h"
#include "ops/row_map.h"

namespace braid {
namespace {

/// In all bytes: NaN in every floating-point type.
constexpr int kNanByte = 0xFF;

/// Which rows go where.
RowMap map_of(const CommCall& call) {
  return {call.rows.offsets_of_all,
          {.members = static_cast<int64_t>(call.group->ranks.size()),
           .experts = call.rows.experts,
           .copies = call.rows.copies,
           .room = call.op == CommOp::kDispatchRows ? call.rows.recv_rows : call.rows.send_rows}};
}

/// One of the things that each row has.
struct Payload {
  DType dtype = DType::kF32;
  int64_t elems = 1;  ///< of a row; 0: rows have none

  int64_t bytes() const { return elems * static_cast<int64_t>(dtype_bytes(dtype)); }
};

Payload rows_of(const CommCall& call) {
  return {call.dtype, call.send_elems / call.rows.send_rows};
}

Payload weights_of(const CommCall& call) {
  return {call.rows.weight_dtype, call.rows.has_weights ? 1 : 0};
}

Payload scales_of(const CommCall& call) {
  return {DType::kF32, call.rows.scales_of_row};
}

void copy_rows(const Payload& payload, const std::byte* from, int64_t from_row, std::byte* to,
               int64_t to_row, int64_t count) {
  if (count > 0) {
    std::memcpy(to + to_row * payload.bytes(), from + from_row * payload.bytes(),
                static_cast<size_t>(count * payload.bytes()));
  }
}

/// Where a member's rows lie: those of x, or only those that it packed for this member.
struct GivenRows {
  const std::byte* data = nullptr;
  int64_t row = 0;  ///< of the next block, if packed
};

/// This member's y, and how it is made of what members gave.
class Exchange {
 public:
  Exchange(const CommCall& call, size_t member, bool packed)
      : call_(call), map_(map_of(call)), member_(static_cast<int64_t>(member)), packed_(packed) {}

  void dispatch(const Payload& payload, std::vector<GivenRows> given, std::byte* y) const {
    map_.for_each_range(member_, [&](int64_t source, int64_t, const RowRange& block) {
      GivenRows& from = given[static_cast<size_t>(source)];
      copy_rows(payload, from.data, packed_ ? from.row : block.source_row, y, block.holder_row,
                block.count);
      from.row += block.count;
    });
  }

  void combine(const Payload& payload, std::vector<GivenRows> given, std::byte* y) const {
    for (int64_t holder = 0; holder < map_.members(); holder += map_.copies()) {
      map_.for_each_range(holder, [&](int64_t source, int64_t expert, const RowRange& block) {
        if (source == member_) {
          sum_copies(payload, holder, block, given, y);
          fill_dropped(payload, block, map_.count(source, map_.first_expert(holder) + expert), y);
        }
      });
    }
  }

  /// And counts the rows.
  void write_offsets() const {
    const int64_t came = map_.for_each_range(
        member_, [&, end = int64_t{0}](int64_t, int64_t expert, const RowRange& block) mutable {
          end += block.count;
          call_.rows.offsets[expert + 1] = static_cast<int32_t>(end);
        });
    call_.rows.offsets[0] = 0;
    if (call_.rows.tally != nullptr) {
      add_to_tally(came, call_.rows.tally);
    }
  }

 private:
  void sum_copies(const Payload& payload, int64_t holder, const RowRange& block,
                  std::vector<GivenRows>& given, std::byte* y) const {
    std::vector<const std::byte*> sources;
    for (int64_t i = 0; i < map_.copies(); ++i) {
      GivenRows& from = given[static_cast<size_t>(holder + i)];
      sources.push_back(from.data + (packed_ ? from.row : block.holder_row) * payload.bytes());
      from.row += block.count;
    }
    std::byte* target = y + block.source_row * payload.bytes();
    if (map_.copies() == 1) {
      return copy_rows(payload, sources[0], 0, target, 0, block.count);
    }
    sum_elems({.sources = sources,
               .targets = {&target, 1},
               .dtype = payload.dtype,
               .count = block.count * payload.elems});
  }

  void fill_dropped(const Payload& payload, const RowRange& block, int64_t all,
                    std::byte* y) const {
    if (all > block.count) {
      std::memset(y + (block.source_row + block.count) * payload.bytes(),
                  call_.rows.drops ? 0 : kNanByte,
                  static_cast<size_t>((all - block.count) * payload.bytes()));
    }
  }

  void add_to_tally(int64_t came, int64_t* tally) const {
    if (member_ % map_.copies() == 0) {
      tally[RoomTally::kRows] += came;
      tally[RoomTally::kDropped] += std::max<int64_t>(came - map_.room(), 0);
    }
    tally[RoomTally::kMost] = std::max(tally[RoomTally::kMost], came);
    tally[RoomTally::kRoom] = map_.room();
    tally[RoomTally::kEqual] = call_.rows.send_rows * map_.copies();
  }

  const CommCall& call_;
  RowMap map_;
  int64_t member_;
  bool packed_;
};

void run_exchange(const CommCall& call, const Exchange& exchange, const Payload& payload,
                  std::vector<GivenRows> given, std::byte* y) {
  if (payload.elems == 0) {
    return;
  }
  if (call.op == CommOp::kDispatchRows) {
    exchange.dispatch(payload, std::move(given), y);
  } else {
    exchange.combine(payload, std::move(given), y);
  }
}

void run_all(const CommCall& call, const Exchange& exchange, std::span<const RowsOfMember> given) {
  const auto run = [&](const Payload& payload, const std::byte* RowsOfMember::*part, std::byte* y) {
    std::vector<GivenRows> parts;
    for (const RowsOfMember& member : given) {
      parts.push_back({.data = member.*part});
    }
    run_exchange(call, exchange, payload, std::move(parts), y);
  };
  run(rows_of(call), &RowsOfMember::rows, call.recv);
  run(weights_of(call), &RowsOfMember::weights, call.rows.recv_weights);
  run(scales_of(call), &RowsOfMember::scales, call.rows.recv_scales);
  if (call.rows.offsets != nullptr) {
    exchange.write_offsets();
  }
}

/// Calls visit(row, count) for the rows of `from`'s x that `to` needs.
template <class Visit>
void for_each_sent(const CommCall& call, int64_t from, int64_t to, Visit&& visit) {
  const RowMap map = map_of(call);
  const bool dispatches = call.op == CommOp::kDispatchRows;
  const int64_t holder = dispatches ? to : from;
  const int64_t owner = dispatches ? from : to;
  map.for_each_range(holder, [&](int64_t source, int64_t, const RowRange& block) {
    if (source == owner) {
      visit(dispatches ? block.source_row : block.holder_row, block.count);
    }
  });
}

void append_rows(std::string& bytes, const CommCall& call, int64_t from, int64_t to,
                 const Payload& payload, const std::byte* x) {
  if (payload.elems == 0) {
    return;
  }
  for_each_sent(call, from, to, [&](int64_t row, int64_t count) {
    bytes.append(reinterpret_cast<const char*>(x + row * payload.bytes()),
                 static_cast<size_t>(count * payload.bytes()));
  });
}

}  // namespace

RowsOfMember rows_given(const CommCall& call) {
  return {.rows = call.send, .weights = call.rows.send_weights, .scales = call.rows.send_scales};
}

void exchange_rows(const CommCall& call, size_t member, std::span<const RowsOfMember> given) {
  run_all(call, Exchange(call, member, /*packed=*/false), given);
}

std::string pack_rows(const CommCall& call, size_t member, size_t to) {
  const RowsOfMember own = rows_given(call);
  std::string bytes;
  const auto append = [&](const Payload& payload, const std::byte* x) {
    append_rows(bytes, call, static_cast<int64_t>(member), static_cast<int64_t>(to), payload, x);
  };
  append(rows_of(call), own.rows);
  append(weights_of(call), own.weights);
  append(scales_of(call), own.scales);
  return bytes;
}

int64_t num_packed_rows(const CommCall& call, size_t from, size_t to) {
  int64_t rows = 0;
  for_each_sent(call, static_cast<int64_t>(from), static_cast<int64_t>(to),
                [&](int64_t, int64_t count) { rows += count; });
  return rows;
}

int64_t bytes_per_row(const CommCall& call) {
  return rows_of(call).bytes() + weights_of(call).bytes() + scales_of(call).bytes();
}

void exchange_packed_rows(const CommCall& call, size_t member,
                          std::span<const std::string_view> packed) {
  std::vector<RowsOfMember> given;
  for (size_t from = 0; from < packed.size(); ++from) {
    const int64_t count = num_packed_rows(call, from, member);
    if (std::ssize(packed[from]) != count * bytes_per_row(call)) {
      throw_device_error("{}: rank {} sent {} bytes, but its offsets say {} rows of {}",
                         describe_call(call), call.group->ranks[from], packed[from].size(), count,
                         bytes_per_row(call));
    }
    const auto* const rows = reinterpret_cast<const std::byte*>(packed[from].data());
    const std::byte* const weights = rows + count * rows_of(call).bytes();
    given.push_back(
        {.rows = rows, .weights = weights, .scales = weights + count * weights_of(call).bytes()});
  }
  run_all(call, Exchange(call, member, /*packed=*/true), given);
}

}  // namespace braid
