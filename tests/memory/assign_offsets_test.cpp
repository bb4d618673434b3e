#include "memory/assign_offsets.h"

#include <gtest/gtest.h>

#include <functional>

#include "memory/greedy.h"
#include "memory/max_live.h"
#include "memory/order_matrix.h"
#include "memory/programs.h"
#include "memory/rounds.h"
#include "memory/sweep.h"
#include "support/thinned.h"

namespace braid {
namespace {

using Packer = std::function<Packing(const LiveRanges&, std::span<const int64_t>, int64_t)>;

struct NamedPacker {
  const char* name;
  Packer pack;
};

std::vector<NamedPacker> packers() {
  std::vector<NamedPacker> all = {
      {"the best", [](const LiveRanges& ranges, std::span<const int64_t> sizes, int64_t bound) {
         return assign_offsets(ranges, sizes, bound);
       }}};
  for (const GreedyOrder order : {GreedyOrder::kSize, GreedyOrder::kArea, GreedyOrder::kLifetime}) {
    all.push_back({"greedy", [order](const LiveRanges& ranges, std::span<const int64_t> sizes,
                                     int64_t) { return pack_greedily(ranges, sizes, order); }});
  }
  all.push_back({"rounds", [](const LiveRanges& ranges, std::span<const int64_t> sizes,
                              int64_t bound) { return pack_in_rounds(ranges, sizes, bound, 5); }});
  for (const uint32_t short_life_tasks : {0u, 4u, 16u, 1000u}) {
    all.push_back(
        {"sweep", [short_life_tasks](const LiveRanges& ranges, std::span<const int64_t> sizes,
                                     int64_t bound) {
           const int64_t expected_bytes = short_life_tasks == 0 ? 0 : bound;
           return pack_in_program_order(ranges, sizes, {expected_bytes, short_life_tasks});
         }});
  }
  return all;
}

int64_t end_of_last(const Packing& packing, const LiveRanges& ranges,
                    std::span<const int64_t> sizes) {
  int64_t end = 0;
  for (size_t buffer = 0; buffer < sizes.size(); ++buffer) {
    end = std::max(end, ranges.is_used(buffer) ? packing.offset_bytes[buffer] + sizes[buffer] : 0);
  }
  return end;
}

TEST(Packers, NeverOverlapBuffersThatInterfere) {
  const std::vector<NamedPacker> all = packers();
  for (uint64_t seed = 0; seed < thinned_count(500u, 5); ++seed) {
    const Program program = random_small_program(seed);
    const TaskOrder order(program);
    const LiveRanges ranges(program, order);
    const std::vector<int64_t> sizes = sizes_of(program);
    const MaxLive max_live = find_max_live(program, order, ranges, sizes);
    const OrderMatrix matrix(program);
    for (const NamedPacker& packer : all) {
      const Packing packing = packer.pack(ranges, sizes, max_live.bytes);
      ASSERT_EQ(packing.arena_bytes, end_of_last(packing, ranges, sizes))
          << packer.name << ", seed " << seed;
      ASSERT_GE(packing.arena_bytes, max_live.bytes) << packer.name << ", seed " << seed;
      ASSERT_TRUE(matrix.is_conflict_free(program, packing.offset_bytes))
          << packer.name << ", seed " << seed;
    }
  }
}

TEST(Packers, StackNestedLifetimesWithoutGaps) {
  ProgramWriter writer;
  const StreamId stream = writer.stream(StreamKind::kCompute);
  std::vector<BufferId> saved;
  int64_t saved_bytes = 0;
  for (int64_t i = 0; i < 40; ++i) {
    const int64_t bytes = 256 * (1 + i * 7 % 11);
    saved.push_back(writer.buffer(bytes));
    writer.task(stream, {}, {saved.back()});
    saved_bytes += bytes;
  }
  for (size_t i = saved.size(); i-- > 0;) {
    writer.task(stream, {saved[i]}, {});
  }
  const Program program = writer.take();
  const LiveRanges ranges(program, TaskOrder(program));
  const std::vector<int64_t> sizes = sizes_of(program);
  for (const NamedPacker& packer : packers()) {
    EXPECT_EQ(packer.pack(ranges, sizes, saved_bytes).arena_bytes, saved_bytes) << packer.name;
  }
}

TEST(Packers, AreDeterministic) {
  const Program program = TransformerStep({}).write();
  const TaskOrder order(program);
  const LiveRanges ranges(program, order);
  const std::vector<int64_t> sizes = sizes_of(program);
  for (const NamedPacker& packer : packers()) {
    const int64_t bound = find_max_live(program, order, ranges, sizes).bytes;
    EXPECT_EQ(packer.pack(ranges, sizes, bound).offset_bytes,
              packer.pack(ranges, sizes, bound).offset_bytes)
        << packer.name;
  }
}

TEST(Sweeps, ArePackingsInProgramOrder) {
  for (uint64_t seed = 0; seed < thinned_count(100u, 5); ++seed) {
    const Program program = random_small_program(seed);
    const LiveRanges ranges(program, TaskOrder(program));
    const std::vector<int64_t> sizes = sizes_of(program);
    Sweeps sweeps(ranges, sizes);
    for (const SweepOptions& options :
         {SweepOptions{0, 0}, SweepOptions{4096, 16}, SweepOptions{4096, 64},
          SweepOptions{8192, 16}, SweepOptions{0, 0}, SweepOptions{4096, 16}}) {
      const Packing alone = pack_in_program_order(ranges, sizes, options);
      const Packing& again = sweeps.pack(options);
      ASSERT_EQ(again.offset_bytes, alone.offset_bytes) << "seed " << seed;
      ASSERT_EQ(again.arena_bytes, alone.arena_bytes) << "seed " << seed;
    }
  }
}

// As the pairs get more, the search leaves out one heuristic after the other.
TEST(AssignOffsets, PlacesEverythingWhateverItsBudgetAllows) {
  for (const int64_t num_buffers : {100, 2000, 4500}) {
    ProgramWriter writer;
    const StreamId stream = writer.stream(StreamKind::kCompute);
    std::vector<BufferId> buffers;
    for (int64_t i = 0; i < num_buffers; ++i) {
      buffers.push_back(writer.buffer(256 * (1 + i * i % 7)));
      writer.task(stream, {}, {buffers.back()});
    }
    for (size_t i = 0; i < buffers.size(); ++i) {
      writer.task(stream, {buffers[(i * 37) % buffers.size()]}, {});
    }
    const Program program = writer.take();
    const LiveRanges ranges(program, TaskOrder(program));
    const std::vector<int64_t> sizes = sizes_of(program);
    // A bound out of reach: nothing is good enough.
    const Packing packing = assign_offsets(ranges, sizes, 256);
    ASSERT_EQ(packing.offset_bytes.size(), buffers.size());
    EXPECT_EQ(packing.arena_bytes, end_of_last(packing, ranges, sizes));
    EXPECT_GE(packing.arena_bytes, find_max_live(program, TaskOrder(program), ranges, sizes).bytes);
  }
}

// What the first heuristic misses is looked for where it is much, and left alone where it is not.
TEST(AssignOffsets, SearchesForWhatIsWorthIt) {
  constexpr uint32_t kShortLifeTasks = 64;  // of the heuristic that is tried first
  int num_improved = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Program program = random_small_program(seed);
    const TaskOrder order(program);
    const LiveRanges ranges(program, order);
    std::vector<int64_t> sizes = sizes_of(program);
    const int64_t bound = find_max_live(program, order, ranges, sizes).bytes;
    const Packing first = pack_in_program_order(ranges, sizes, {bound, kShortLifeTasks});
    ASSERT_LE(first.arena_bytes - bound, 65536) << "seed " << seed;
    EXPECT_EQ(assign_offsets(ranges, sizes, bound).offset_bytes, first.offset_bytes)
        << "seed " << seed;
    for (int64_t& bytes : sizes) {
      bytes *= 65536;
    }
    const int64_t best = assign_offsets(ranges, sizes, bound * 65536).arena_bytes;
    ASSERT_LE(best, first.arena_bytes * 65536) << "seed " << seed;
    num_improved += best < first.arena_bytes * 65536 ? 1 : 0;
  }
  EXPECT_GT(num_improved, 10);
}

TEST(CountOverlappingPairs, CountsThePairsWhoseLifetimesOverlap) {
  ProgramWriter writer;
  const StreamId stream = writer.stream(StreamKind::kCompute);
  const BufferId all_along = writer.buffer(1);
  const BufferId first = writer.buffer(1);
  const BufferId second = writer.buffer(1);
  const BufferId empty = writer.buffer(0);
  writer.task(stream, {}, {all_along, first, empty});
  writer.task(stream, {}, {second});
  writer.task(stream, {all_along}, {});
  const Program program = writer.take();
  const LiveRanges ranges(program, TaskOrder(program));
  EXPECT_EQ(count_overlapping_pairs(ranges, sizes_of(program)), 2);
}

}  // namespace
}  // namespace braid
