#include "backends/cuda/comm/window_layout.h"

#include <gmock/gmock.h>

#include "backends/run_ranks.h"
#include "base/errors.h"
#include "ir/text.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;

constexpr int kRanks = 3;

/// Memory that nobody reads: addresses are all that is asked for.
std::byte* at(int64_t address) {
  return reinterpret_cast<std::byte*>(address);
}

/// Where a rank has its operands.
struct Place {
  int64_t base = 1 << 20;      // of its second memory; the first begins at 4096
  int64_t size_bytes = 65536;  // of the second memory
  int64_t x_offset = 512;
  int64_t y_offset = 8192;
  std::string why_not;
};

Program program_of(int rank) {
  return parse_program(fmt::format("program step rank={} ranks=3 events=0\n"
                                   "stream comm kind=comm priority=1\n"
                                   "group all kind=data ranks=0,1,2\n"
                                   "group pair kind=tensor ranks=0,1\n"
                                   "buffer x f32 [4] activation persistent device\n"
                                   "buffer y f32 [12] activation persistent device\n"
                                   "all_gather(x -> y) {{group=0}} comm comm\n",
                                   rank) +
                       (rank < 2 ? "all_reduce(x) {group=1} comm comm\n" : ""));
}

/// What each rank of the group "all" finds.
std::vector<WindowLayout> layouts(const std::vector<Place>& places) {
  const auto meeting = make_in_process_rendezvous(kRanks, 20'000'000'000);
  std::vector<WindowLayout> found(places.size());
  run_side_by_side(places.size(), [&](size_t rank) {
    const Place& place = places[rank];
    const Program program = program_of(static_cast<int>(rank));
    const CommunicatorKey key = communicator_key(program, program.tasks[0]).value();
    const OperandMemory operands{
        .memory = {{at(4096), 4096}, {at(place.base), place.size_bytes}},
        .address = [&](size_t, TaskId task, size_t operand) {
          EXPECT_EQ(task.value, 0u) << "of another group";
          return at(place.base + (operand == 0 ? place.x_offset : place.y_offset));
        }};
    found[rank] = agree_on_windows(key, {&program, 1}, operands, place.why_not, *meeting[rank]);
  });
  return found;
}

auto all_say(const std::string& why) {
  return Each(Field(&WindowLayout::why_not, why));
}

TEST(WindowLayout, IsThatOfOperandsAtOneOffsetInMemoryOfOneSize) {
  const auto found = layouts({{}, {.base = 3 << 20}, {.base = 5 << 20}});
  EXPECT_THAT(found, all_say(""));
  EXPECT_THAT(found[2].memory, ElementsAre(1u));  // nothing of the group is in the first one
}

TEST(WindowLayout, ThereIsNoneWhereRanksDiffer) {
  EXPECT_THAT(layouts({{}, {}, {.x_offset = 768}}),
              all_say("operands lie elsewhere in the memory of rank 2 than in that of rank 0"));
  EXPECT_THAT(layouts({{}, {.y_offset = 4096}, {.y_offset = 4096}}),
              all_say("operands lie elsewhere in the memory of rank 1 than in that of rank 0"));
  EXPECT_THAT(layouts({{}, {}, {.size_bytes = 131072}}),
              all_say("operands lie elsewhere in the memory of rank 2 than in that of rank 0"));
}

TEST(WindowLayout, ThereIsNoneWhereOneRankCannot) {
  EXPECT_THAT(layouts({{}, {.why_not = "windows need NCCL 2.28"}, {.x_offset = 768}}),
              all_say("rank 1: windows need NCCL 2.28"));
  EXPECT_THAT(layouts({{}, {}, {.y_offset = 65536}}),
              all_say("rank 2: operands are in other memory"));
}

}  // namespace
}  // namespace braid
