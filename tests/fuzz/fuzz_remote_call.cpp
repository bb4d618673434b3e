// Any bytes as a call of another process: one that fits its group and brings the elements that it
// announces, or DeviceError.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/errors.h"
#include "comm/tcp/remote_call.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    const auto remote = braid::unpack_call(bytes, {.from = 0, .to = 1, .num_ranks = 4});
    const braid::SentPart part =
        braid::sent_part(remote->call, braid::check_comm_call(remote->call, 0),
                         static_cast<size_t>(std::ranges::find(remote->group.ranks, 1) -
                                             remote->group.ranks.begin()));
    if (remote->bytes.size() !=
        static_cast<size_t>(part.count) * braid::dtype_bytes(remote->call.dtype)) {
      std::abort();
    }
  } catch (const braid::DeviceError&) {
  }
  return 0;
}
