#include "comm/tcp/received_parts.h"

#include "comm/comm_fixture.h"
#include "comm/meeting.h"
#include "comm/tcp/remote_call.h"

namespace braid {
namespace {

constexpr size_t kRanks = 3;

/// A call of the group by each of its ranks.
struct Calls {
  Group group = make_group("all", {5, 0, 2});
  std::vector<std::vector<float>> x;
  std::vector<std::vector<float>> y;
  std::vector<CommCall> calls;

  Calls(CommOp op, size_t send_elems, size_t recv_elems) : x(kRanks), y(kRanks) {
    for (size_t rank = 0; rank < kRanks; ++rank) {
      x[rank] = random_values<float>(send_elems, static_cast<uint32_t>(rank + 1));
      y[rank].assign(recv_elems, std::numeric_limits<float>::quiet_NaN());
      calls.push_back(call_between(op, group, x[rank], y[rank]));
      calls.back().root = 1;
      calls.back().shift = 2;
    }
  }
};

/// What ranks write that read each other's memory.
std::vector<std::vector<float>> shared_results(CommOp op, size_t send_elems, size_t recv_elems) {
  Calls all(op, send_elems, recv_elems);
  Meeting meeting(all.calls[0], 0);
  for (size_t i = 0; i < kRanks; ++i) {
    meeting.calls[i] = &all.calls[i];
  }
  meeting.take_buffers();
  for (size_t i = 0; i < kRanks; ++i) {
    meeting.do_share(i);
  }
  return all.y;
}

void expect_shared_results(CommOp op, size_t send_elems, size_t recv_elems) {
  const auto expected = shared_results(op, send_elems, recv_elems);
  Calls all(op, send_elems, recv_elems);
  for (size_t to = 0; to < kRanks; ++to) {
    std::vector<std::vector<float>> sent(kRanks);  // no more than what is sent
    std::vector<const std::byte*> parts;
    for (size_t from = 0; from < kRanks; ++from) {
      const SentPart part = sent_part(all.calls[from], from, to);
      const auto begin = all.x[from].begin() + part.begin;
      sent[from].assign(begin, begin + part.count);
      parts.push_back(bytes_of(sent[from]));
    }
    write_result(all.calls[to], to, parts);
    EXPECT_TRUE(same_bytes(all.y[to], expected[to])) << comm_op_name(op) << " at member " << to;
  }
}

TEST(ReceivedParts, GiveWhatRanksGetThatReadEachOthersMemory) {
  for (const size_t block : {size_t{0}, size_t{1}, size_t{37}}) {
    for (const CommOp op :
         {CommOp::kAllReduce, CommOp::kReduce, CommOp::kBroadcast, CommOp::kRingShift}) {
      expect_shared_results(op, block, block);
    }
    expect_shared_results(CommOp::kReduceScatter, kRanks * block, block);
    expect_shared_results(CommOp::kAllGather, block, kRanks * block);
    expect_shared_results(CommOp::kAllToAll, kRanks * block, kRanks * block);
  }
}

TEST(ReceivedParts, AMessageIsWhatItsSourceSent) {
  const Group line = make_group("pipeline", {0, 1});
  std::vector<float> x = random_values<float>(11, 3);
  std::vector<float> y(11);
  write_result(recv_of(line, y, 0), 1, {bytes_of(x), nullptr});
  EXPECT_TRUE(same_bytes(x, y));
  const std::vector<float> before = x;
  write_result(send_of(line, x, 1), 0, {bytes_of(x), nullptr});
  EXPECT_TRUE(same_bytes(x, before));
}

}  // namespace
}  // namespace braid
