// Any bytes as a call of another process: one that fits its group and brings the elements that it
// announces, or DeviceError.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/errors.h"
#include "comm/row_exchange.h"
#include "comm/tcp/remote_call.h"

namespace {

constexpr int kFrom = 0;
constexpr int kTo = 1;

/// Which rows travel is data of the receiver, so that a call says no more than that they are whole.
bool has_whole_rows(const braid::RemoteCall& remote) {
  const auto row_bytes = static_cast<size_t>(bytes_per_row(remote.call));
  return row_bytes == 0 ? remote.bytes.empty()
                        : remote.bytes.size() % row_bytes == 0 &&
                              remote.bytes.size() / row_bytes <=
                                  static_cast<size_t>(remote.call.rows.send_rows);
}

bool has_its_part(const braid::RemoteCall& remote) {
  const size_t from = check_comm_call(remote.call, kFrom);
  if (remote.call.exchanges_rows()) {
    return has_whole_rows(remote);
  }
  const auto to = std::ranges::find(remote.group.ranks, kTo) - remote.group.ranks.begin();
  const braid::SentPart part = sent_part(remote.call, from, static_cast<size_t>(to));
  return remote.bytes.size() ==
         static_cast<size_t>(part.count) * braid::dtype_bytes(remote.call.dtype);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    if (!has_its_part(*braid::unpack_call(bytes, {.from = kFrom, .to = kTo, .num_ranks = 4}))) {
      std::abort();
    }
  } catch (const braid::DeviceError&) {
  }
  return 0;
}
