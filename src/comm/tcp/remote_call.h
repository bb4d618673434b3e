#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "comm/comm_call.h"
#include "ir/program.h"

namespace braid {

/// A call of a rank in another process, with the part of its x that this process needs.
struct RemoteCall {
  Group group;
  CommCall call;       ///< of `group`; without operands
  int64_t number = 0;  ///< in its meeting, from 1
  std::string bytes;   ///< the part of its x
};

/// The part of this call's x that member `to` of its group needs: nothing, a block, or everything.
/// Elements; of calls that exchange rows, the number of rows of `pack_rows`.
struct SentPart {
  int64_t begin = 0;
  int64_t count = 0;
};
SentPart sent_part(const CommCall& call, size_t member, size_t to);

/// Serializes everything except the elements, which follow it.
std::string pack_call(const CommCall& call, int64_t number, SentPart part);

/// The ranks between which a call travels.
struct CallPath {
  int from = 0;
  int to = 0;
  int num_ranks = 0;  ///< of the run
};

/// The inverse. The call fits its group, and its bytes are exactly the part that `to` needs, so
/// that a call that fits together with it may read them; of a call that exchanges rows, they are
/// whole rows, whose number `exchange_packed_rows` compares with the offsets that `to` has. Throws
/// DeviceError for bytes that no process of this program sends.
std::unique_ptr<RemoteCall> unpack_call(std::string bytes, const CallPath& path);

}  // namespace braid
