#include "comm/tcp/remote_call.h"

#include "comm/comm_fixture.h"

namespace braid {
namespace {

TEST(RemoteCall, IsWhatWasSent) {
  const Group group = make_group("data", {3, 0, 2}, GroupKind::kContext);
  std::vector<double> x(12);
  std::vector<double> y(4);
  CommCall call = call_between(CommOp::kReduceScatter, group, x, y);
  call.what = "layers.1";
  const SentPart part = sent_part(call, 0, 2);
  EXPECT_EQ(part.begin, 8);
  EXPECT_EQ(part.count, 4);
  const std::string sent = pack_call(call, 7, part) + std::string(32, 'x');
  const auto got = unpack_call(sent, 4);
  EXPECT_EQ(got->group.name, "data");
  EXPECT_EQ(got->group.kind, GroupKind::kContext);
  EXPECT_EQ(got->group.ranks, group.ranks);
  EXPECT_EQ(got->number, 7);
  EXPECT_EQ(got->bytes, std::string(32, 'x'));
  EXPECT_EQ(describe_call(got->call), describe_call(call));
  EXPECT_TRUE(fit_together(got->call, call));
}

TEST(RemoteCall, ComesFromAMemberWithTheBytesThatAnotherNeeds) {
  const Group group = make_group("data", {3, 0, 2});
  std::vector<double> x(12);
  std::vector<double> y(4);
  CommCall call = call_between(CommOp::kReduceScatter, group, x, y);
  const auto sent = [&](size_t num_bytes) {
    const SentPart part{.begin = 8, .count = static_cast<int64_t>(num_bytes / 8)};
    return unpack_call(pack_call(call, 1, part) + std::string(num_bytes, 'x'), 4);
  };
  EXPECT_EQ(sender_of(*sent(32), 0, 2), 1u);
  EXPECT_THROW(sender_of(*sent(24), 0, 2), DeviceError);  // one element less than rank 2 reads
  EXPECT_THROW(sender_of(*sent(32), 1, 2), DeviceError);
  EXPECT_THROW(sender_of(*sent(32), 0, 1), DeviceError);
  call.recv_elems = int64_t{1} << 62;
  EXPECT_THROW(sender_of(*sent(32), 0, 2), DeviceError);
  call.recv_elems = 4;
  call.shift = std::numeric_limits<int64_t>::min();
  EXPECT_THROW(sender_of(*sent(32), 0, 2), DeviceError);
}

TEST(RemoteCall, RefusesWhatNoProcessSends) {
  const Group group = make_group("data", {0, 1});
  std::vector<float> x(3);
  const std::string good = pack_call(all_reduce_of(group, x), 1, {0, 3}) + std::string(12, 'x');
  EXPECT_NO_THROW(unpack_call(good, 2));
  EXPECT_THROW(unpack_call(good, 1), DeviceError);
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(unpack_call(good.substr(0, size), 2), DeviceError) << size;
  }
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {  // any bytes: an error or a call, and no crash
    std::string bad = good;
    bad[random() % bad.size()] = static_cast<char>(random());
    try {
      unpack_call(bad, 2);
    } catch (const DeviceError&) {
    }
  }
}

}  // namespace
}  // namespace braid
