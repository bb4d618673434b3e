#include "ops/context_sections.h"

#include "support/kernel_harness.h"

namespace braid {
namespace {

/// Three ranks with two sections of each of two sequences; section s of rank r lies at place s of
/// kPlaces[r].
constexpr int64_t kRanks = 3;
constexpr int64_t kSections = 2;
constexpr int64_t kBatches = 2;
constexpr int64_t kPlaces[kRanks][kSections] = {{0, 5}, {1, 4}, {2, 3}};

ContextSections context_of(int64_t rank) {
  return {.ranks = kRanks, .index = rank, .sections = kSections};
}

/// The gathered block of the section at a place, -1 if there is none.
int64_t block_at(int64_t sequence, int64_t place) {
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    for (int64_t section = 0; section < kSections; ++section) {
      if (kPlaces[rank][section] == place) {
        return (rank * kBatches + sequence) * kSections + section;
      }
    }
  }
  return -1;
}

TEST(NeighbourSections, AreThoseNextToTheRanks) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kWidth = 5;
  constexpr int64_t kOwnRows = kBatches * kSections * kRows;
  for (const DType dtype : kFloatDtypes) {
    for (const bool later : {false, true}) {
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        KernelCase kernel(
            {"neighbour_sections",
             to_attributes(NeighbourSectionsAttributes{
                 .context = context_of(rank), .rows = kRows, .later = later}),
             {read(dtype, {kRanks * kOwnRows, kWidth}), write(dtype, {kOwnRows, kWidth})}});
        kernel.run();
        const std::vector<double> x = kernel.values(0);
        std::vector<double> expected;
        for (int64_t own = 0; own < kBatches * kSections; ++own) {
          const int64_t place = kPlaces[rank][own % kSections] + (later ? 1 : -1);
          const int64_t block = block_at(own / kSections, place);
          for (int64_t i = 0; i < kRows * kWidth; ++i) {
            expected.push_back(block < 0 ? 0 : x[static_cast<size_t>(block * kRows * kWidth + i)]);
          }
        }
        EXPECT_EQ(kernel.values(1), expected) << rank << (later ? " later" : "");
      }
    }
  }
}

TEST(CarryStates, AddsUpSectionBySection) {
  constexpr int64_t kHeads = 3;
  constexpr int64_t kElems = 4;
  constexpr int64_t kWidth = kHeads * (kElems + 1);
  constexpr int64_t kOwnRows = kBatches * kSections;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const bool later : {false, true}) {
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        KernelCase kernel({"carry_states",
                           to_attributes(CarryStatesAttributes{
                               .context = context_of(rank), .heads = kHeads, .later = later}),
                           {read(dtype, {kRanks * kOwnRows, kWidth}),
                            write(dtype, {kOwnRows, kHeads * kElems})}});
        kernel.run(2);
        const std::vector<double> x = kernel.values(0);
        std::vector<double> expected;
        for (int64_t i = 0; i < kOwnRows * kHeads * kElems; ++i) {
          const int64_t own = i / (kHeads * kElems);
          const int64_t column = i % (kHeads * kElems);
          double state = 0;
          const int64_t end = kPlaces[rank][own % kSections];
          for (int64_t place = later ? kRanks * kSections - 1 : 0; place != end;
               place += later ? -1 : 1) {
            const int64_t row = block_at(own / kSections, place) * kWidth;
            state = x[static_cast<size_t>(row + kHeads * kElems + column / kElems)] * state +
                    x[static_cast<size_t>(row + column)];
          }
          expected.push_back(state);
        }
        expect_close(kernel.values(1), expected, {.absolute = 64 * rounding_error(dtype)},
                     fmt::format("rank {}{}", rank, later ? " later" : ""));
      }
    }
  }
}

}  // namespace
}  // namespace braid
