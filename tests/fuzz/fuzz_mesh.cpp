#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "comm/row_exchange.h"
#include "comm/tcp/frame.h"
#include "comm/tcp/received_parts.h"
#include "comm/tcp/remote_call.h"
#include "comm/tcp/remote_meeting.h"

namespace {

using namespace braid;

constexpr int kThis = 0;
constexpr int kOther = 1;
constexpr size_t kMostFrames = 8;

/// What this rank runs: all meetings of a small program with rank 1.
class Rank {
 public:
  Rank() {
    for (const CommOp op :
         {CommOp::kAllReduce, CommOp::kAllReduceMax, CommOp::kReduceScatter, CommOp::kAllToAll}) {
      CommCall call{.op = op,
                    .group = &group_,
                    .send = x_.data(),
                    .recv = y_.data(),
                    .send_elems = 4,
                    .recv_elems = op == CommOp::kReduceScatter ? 2 : 4,
                    .dtype = DType::kF32,
                    .what = "x"};
      calls_.push_back(call);
    }
    calls_.push_back(exchange_of_rows(CommOp::kDispatchRows));
    calls_.push_back(exchange_of_rows(CommOp::kCombineRows));
  }

  /// As the transport does with a frame of rank 1.
  void take(std::string body) {
    std::unique_ptr<RemoteCall> remote =
        unpack_call(std::move(body), {.from = kOther, .to = kThis, .num_ranks = 2});
    const std::vector<int>& ranks = remote->group.ranks;
    const auto member = static_cast<size_t>(std::ranges::find(ranks, kOther) - ranks.begin());
    const size_t party = party_of(remote->call, member);
    auto place = std::make_unique<RemoteMeeting>(remote->call, member);
    const std::string key = meeting_key(place->meeting());
    places_.try_emplace(key, std::move(place)).first->second->add(party, std::move(remote));
  }

  void run_all() {
    for (const CommCall& call : calls_) {
      auto own = std::make_unique<RemoteMeeting>(call, kThis);
      const auto found = places_.find(meeting_key(own->meeting()));
      if (found == places_.end()) {
        continue;
      }
      RemoteMeeting& place = *found->second;
      place.open(kThis, call);
      if (place.all_here() && place.meeting().find_mismatch().empty()) {
        finish(place, call);
      }
      place.close();
    }
  }

 private:
  /// As `kOffsets` says, this rank gets one row of rank 1, and gives it two of its experts' rows.
  CommCall exchange_of_rows(CommOp op) {
    const bool dispatches = op == CommOp::kDispatchRows;
    CommCall call{.op = op,
                  .group = &group_,
                  .send = rows_.data(),
                  .recv = y_rows_.data(),
                  .send_elems = kWidth * (dispatches ? kRows : kRoom),
                  .recv_elems = kWidth * (dispatches ? kRoom : kRows),
                  .dtype = DType::kF32,
                  .what = "x"};
    call.rows = {.experts = 2,
                 .send_rows = dispatches ? kRows : kRoom,
                 .recv_rows = dispatches ? kRoom : kRows,
                 .offsets_of_all = kOffsets.data(),
                 .has_weights = dispatches,
                 .send_weights = weights_.data(),
                 .recv_weights = y_weights_.data(),
                 .offsets = dispatches ? offsets_.data() : nullptr};
    return call;
  }

  void finish(RemoteMeeting& place, const CommCall& call) {
    ++place.meeting().num_met;
    const auto remote = place.take(kThis);
    if (call.exchanges_rows()) {
      const std::string own = pack_rows(call, kThis, kThis);
      const std::string_view packed[] = {own, remote[kOther]->bytes};
      return exchange_packed_rows(call, kThis, packed);
    }
    const auto own = static_cast<size_t>(sent_part(call, kThis, kThis).begin);
    write_result(call, kThis,
                 {call.send + own * dtype_bytes(call.dtype),
                  reinterpret_cast<const std::byte*>(remote[kOther]->bytes.data())});
  }

  static constexpr int64_t kWidth = 2;
  static constexpr int64_t kRows = 3;
  static constexpr int64_t kRoom = 4;
  static constexpr std::array<int32_t, 6> kOffsets{0, 1, 3, 0, 1, 3};  // of each rank's experts

  Group group_{"data", GroupKind::kData, {kThis, kOther}};
  std::array<std::byte, 16> x_{};
  std::array<std::byte, 16> y_{};
  std::array<std::byte, 4 * kWidth * kRoom> rows_{};
  std::array<std::byte, 4 * kWidth * kRoom> y_rows_{};
  std::array<std::byte, 4 * kRoom> weights_{};
  std::array<std::byte, 4 * kRoom> y_weights_{};
  std::array<int32_t, 2> offsets_{};
  std::vector<CommCall> calls_;
  std::map<std::string, std::unique_ptr<RemoteMeeting>> places_;
};

}  // namespace

/// The bytes that a rank receives from another one over the mesh.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FrameBuffer in;
  in.bytes().assign(reinterpret_cast<const char*>(data), size);
  Rank rank;
  try {
    std::optional<Frame> frame;
    for (size_t i = 0; i < kMostFrames && (frame = in.next(1 << 20)); ++i) {
      rank.take(std::move(frame->body));
      rank.run_all();
    }
  } catch (const DeviceError&) {
  } catch (const InternalError&) {  // calls of rank 1 in another order than its numbers
  }
  return 0;
}
