#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "comm/comm_call.h"

namespace braid {

/// Rows, weights and scales as one member gives them to another.
struct RowsOfMember {
  const std::byte* rows = nullptr;
  const std::byte* weights = nullptr;
  const std::byte* scales = nullptr;
};

/// Those of the call's x.
RowsOfMember rows_given(const CommCall& call);

/// Computes member `member`'s y of a call of dispatch_rows or combine_rows from the x of all
/// members, in group order.
void exchange_rows(const CommCall& call, size_t member, std::span<const RowsOfMember> given);

/// The rows of this member's x that member `to` needs, one behind the other, then their weights,
/// then their scales.
std::string pack_rows(const CommCall& call, size_t member, size_t to);

/// Number of rows that `pack_rows` of member `from` has for member `to`, by the offsets that all
/// members have.
int64_t num_packed_rows(const CommCall& call, size_t from, size_t to);

/// Bytes of a row, its weight and its scales.
int64_t bytes_per_row(const CommCall& call);

/// The same as exchange_rows, from what `pack_rows` of the members had for this one. Throws
/// DeviceError if that of a member has another size.
void exchange_packed_rows(const CommCall& call, size_t member,
                          std::span<const std::string_view> packed);

}  // namespace braid
