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
struct SentPart {
  int64_t begin = 0;
  int64_t count = 0;
};
SentPart sent_part(const CommCall& call, size_t member, size_t to);

/// Serializes everything except the elements, which follow it.
std::string pack_call(const CommCall& call, int64_t number, SentPart part);
/// Throws DeviceError for bytes that no process of this program sends.
std::unique_ptr<RemoteCall> unpack_call(std::string bytes, int num_ranks);

/// The member of the call's group that is rank `from`. Throws DeviceError unless it and rank `to`
/// are in the group, and the bytes are those that `to` needs of its x.
size_t sender_of(const RemoteCall& remote, int from, int to);

}  // namespace braid
