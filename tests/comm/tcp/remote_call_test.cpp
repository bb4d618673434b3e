#include "comm/tcp/remote_call.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "comm/comm_fixture.h"
#include "support/source_path.h"

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
  const auto got = unpack_call(sent, {.from = 3, .to = 2, .num_ranks = 4});
  EXPECT_EQ(got->group.name, "data");
  EXPECT_EQ(got->group.kind, GroupKind::kContext);
  EXPECT_EQ(got->group.ranks, group.ranks);
  EXPECT_EQ(got->number, 7);
  EXPECT_EQ(got->bytes, std::string(32, 'x'));
  EXPECT_EQ(describe_call(got->call), describe_call(call));
  EXPECT_TRUE(fit_together(got->call, call));
}

TEST(RemoteCall, RefusesWhatNoProcessSends) {
  const Group group = make_group("data", {0, 1});
  std::vector<float> x(3);
  const std::string good = pack_call(all_reduce_of(group, x), 1, {0, 3}) + std::string(12, 'x');
  constexpr CallPath kPath = {.from = 0, .to = 1, .num_ranks = 2};
  EXPECT_NO_THROW(unpack_call(good, kPath));
  EXPECT_THROW(unpack_call(good, {.from = 0, .to = 1, .num_ranks = 1}), DeviceError);
  EXPECT_THROW(unpack_call(good, {.from = 2, .to = 1, .num_ranks = 3}), DeviceError);
  EXPECT_THROW(unpack_call(good, {.from = 0, .to = 2, .num_ranks = 3}), DeviceError);
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(unpack_call(good.substr(0, size), kPath), DeviceError) << size;
  }
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {  // any bytes: an error or a call, and no crash
    std::string bad = good;
    bad[random() % bad.size()] = static_cast<char>(random());
    try {
      unpack_call(bad, kPath);
    } catch (const DeviceError&) {
    }
  }
}

/// A call of rank 0 of two to rank 1.
std::string fault_of(const CommCall& call, SentPart part, size_t num_bytes) {
  const std::string sent = pack_call(call, 1, part) + std::string(num_bytes, 'x');
  return message_of<DeviceError>([&] { unpack_call(sent, {.from = 0, .to = 1, .num_ranks = 2}); });
}

TEST(RemoteCall, RefusesBytesThatAreNotWhatTheCallNeeds) {
  const Group group = make_group("data", {0, 1});
  std::vector<float> x(8);
  const CommCall sum = all_reduce_of(group, x);
  EXPECT_NO_THROW(unpack_call(pack_call(sum, 1, {0, 8}) + std::string(32, 'x'),
                              {.from = 0, .to = 1, .num_ranks = 2}));
  fault_of(sum, {0, 8}, 31);
  fault_of(sum, {0, 8}, 33);
  fault_of(sum, {0, 0}, 0);  // announces nothing, brings nothing, and a reader would expect 8
  fault_of(sum, {0, 2}, 8);
  fault_of(sum, {1, 8}, 32);
  fault_of(sum, {0, int64_t{1} << 62}, 0);  // 2^62 * 4 bytes wrap to 0
  fault_of(sum, {0, (int64_t{1} << 62) + 8}, 32);
  fault_of(sum, {0, -1}, 0);
}

TEST(RemoteCall, RefusesSizesThatDoNotFitTheGroup) {
  const Group group = make_group("data", {0, 1});
  std::vector<float> x(4);
  std::vector<float> y(8);
  CommCall gather = call_between(CommOp::kAllGather, group, x, y);
  EXPECT_NO_THROW(unpack_call(pack_call(gather, 1, {0, 4}) + std::string(16, 'x'),
                              {.from = 0, .to = 1, .num_ranks = 2}));
  gather.send_elems = 0;  // it still fits together with the others', which read 4 elements
  EXPECT_THAT(fault_of(gather, {0, 0}, 0), testing::HasSubstr("0 elements there and 8"));
  gather.send_elems = int64_t{1} << 62;
  gather.recv_elems = int64_t{1} << 63;
  fault_of(gather, {0, gather.send_elems}, 0);
}

TEST(RemoteCall, AnnouncesWhatEachOpSends) {
  const Group group = make_group("data", {0, 1});
  std::vector<float> x(4);
  std::vector<float> y(4);
  const auto elems_of = [&](CommOp op, int64_t send_elems, int64_t recv_elems) {
    CommCall call = call_between(op, group, x, y);
    call.send_elems = send_elems;
    call.recv_elems = recv_elems;
    call.peer = 1;
    call.shift = 1;
    const SentPart part = sent_part(call, 0, 1);
    const std::string sent = pack_call(call, 1, part) + std::string(4 * part.count, 'x');
    return unpack_call(sent, {.from = 0, .to = 1, .num_ranks = 2})->bytes.size() / 4;
  };
  EXPECT_EQ(elems_of(CommOp::kAllReduce, 4, 4), 4u);
  EXPECT_EQ(elems_of(CommOp::kAllGather, 2, 4), 2u);
  EXPECT_EQ(elems_of(CommOp::kReduceScatter, 4, 2), 2u);
  EXPECT_EQ(elems_of(CommOp::kAllToAll, 4, 4), 2u);
  EXPECT_EQ(elems_of(CommOp::kBroadcast, 4, 4), 4u);
  EXPECT_EQ(elems_of(CommOp::kReduce, 4, 4), 0u);  // its root is rank 0
  EXPECT_EQ(elems_of(CommOp::kRingShift, 4, 4), 4u);
  EXPECT_EQ(elems_of(CommOp::kSend, 4, 0), 4u);
  EXPECT_EQ(elems_of(CommOp::kRecv, 0, 4), 0u);
}

TEST(RemoteCall, OfRowsBringsWholeRows) {
  const Group group = make_group("experts", {0, 1});
  std::vector<float> x(6);
  std::vector<float> y(8);
  CommCall call = call_between(CommOp::kDispatchRows, group, x, y);
  call.rows = {.experts = 2, .send_rows = 3, .recv_rows = 4, .has_weights = true};
  constexpr size_t kRowBytes = 2 * 4 + 4;
  const auto got = unpack_call(pack_call(call, 1, {0, 2}) + std::string(2 * kRowBytes, 'x'),
                               {.from = 0, .to = 1, .num_ranks = 2});
  EXPECT_EQ(got->bytes, std::string(2 * kRowBytes, 'x'));
  EXPECT_TRUE(fit_together(got->call, call));
  fault_of(call, {0, 2}, 2 * kRowBytes - 1);
  fault_of(call, {0, 4}, 4 * kRowBytes);  // x has 3
  fault_of(call, {1, 2}, 2 * kRowBytes);
  fault_of(call, {0, -1}, 0);
}

TEST(RemoteCall, ReadsTheSeedsOfItsFuzzer) {
  int num_read = 0;
  for (const auto& seed :
       std::filesystem::directory_iterator(source_path("tests/fuzz/corpus/remote_call"))) {
    std::ifstream file(seed.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_NO_THROW(unpack_call(bytes, {.from = 0, .to = 1, .num_ranks = 4})) << seed.path();
    ++num_read;
  }
  EXPECT_GE(num_read, 12);
}

TEST(RemoteCall, RefusesMessagesToOthers) {
  const Group group = make_group("pipeline", {0, 1, 2});
  std::vector<float> x(4);
  CommCall call = all_reduce_of(group, x);
  call.op = CommOp::kSend;
  call.recv_elems = 0;
  const auto fault = [&](int64_t peer) {
    call.peer = peer;
    const std::string sent = pack_call(call, 1, {0, 4}) + std::string(16, 'x');
    return message_of<DeviceError>(
        [&] { unpack_call(sent, {.from = 0, .to = 1, .num_ranks = 3}); });
  };
  EXPECT_THAT(fault(0), testing::HasSubstr("with itself"));
  fault(2);
  EXPECT_THAT(fault(3), testing::HasSubstr("member 3 does not exist"));
  EXPECT_THAT(fault(-1), testing::HasSubstr("member -1 does not exist"));
}

}  // namespace
}  // namespace braid
