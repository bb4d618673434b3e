#include "ops/row_blocks.h"

#include <cmath>

#include "support/row_blocks_cases.h"

namespace braid {
namespace {

void run_on_cpu(KernelCase& kernel) {
  kernel.run();
}

/// A row of an expert, and the member that it belongs to.
struct KeptRow {
  int64_t source = 0;
  int64_t source_row = 0;
  int64_t expert = 0;
};

/// The rows of a pair of members that fit their block, in the order of the source.
std::vector<KeptRow> rows_of_pair(const BlocksCase& c, int64_t source, int64_t holder) {
  const auto& counts = c.experts.counts[static_cast<size_t>(source)];
  const int64_t first = c.experts.first(holder);
  std::vector<KeptRow> rows;
  int64_t row = std::reduce(counts.begin(), counts.begin() + first);
  for (int64_t e = first; e < first + c.experts.local(); ++e) {
    for (int64_t i = 0; i < counts[static_cast<size_t>(e)]; ++i, ++row) {
      if (std::ssize(rows) < c.block_rows) {
        rows.push_back({source, row, e});
      }
    }
  }
  return rows;
}

/// The rows of a member that holds experts, in their order.
std::vector<KeptRow> held_rows(const BlocksCase& c, int64_t holder) {
  std::vector<KeptRow> held;
  for (int64_t source = 0; source < c.experts.members(); ++source) {
    const std::vector<KeptRow> rows = rows_of_pair(c, source, holder);
    held.insert(held.end(), rows.begin(), rows.end());
  }
  std::ranges::stable_sort(held, {}, &KeptRow::expert);
  return held;
}

std::vector<double> row_of(const KernelCase& kernel, size_t operand, int64_t row, int64_t width) {
  const std::vector<double> all = kernel.values(operand);
  return {all.begin() + row * width, all.begin() + (row + 1) * width};
}

void expect_dispatched(const BlocksCase& c, const Exchanged& all, int64_t holder,
                       bool has_weights) {
  const KernelCase& y = all.unpacked[static_cast<size_t>(holder)];
  const std::vector<KeptRow> held = held_rows(c, holder);
  ASSERT_LE(std::ssize(held), c.room());
  for (size_t i = 0; i < held.size(); ++i) {
    const KernelCase& x = all.packed[static_cast<size_t>(held[i].source)];
    EXPECT_EQ(row_of(y, 2, static_cast<int64_t>(i), c.width),
              row_of(x, 0, held[i].source_row, c.width))
        << name_of(c) << ", row " << i << " of member " << holder;
    if (has_weights) {
      EXPECT_EQ(y.values(3)[i], x.values(1)[static_cast<size_t>(held[i].source_row)]);
    }
  }
  const std::vector<double> rows = y.values(2);
  for (size_t i = held.size() * static_cast<size_t>(c.width); i < rows.size(); ++i) {
    EXPECT_TRUE(std::isnan(rows[i])) << "written behind the last row";
  }
}

void expect_offsets(const BlocksCase& c, const KernelCase& y, int64_t holder) {
  const std::vector<KeptRow> held = held_rows(c, holder);
  std::vector<double> expected{0};
  for (int64_t e = 0; e < c.experts.local(); ++e) {
    expected.push_back(expected.back() + static_cast<double>(std::ranges::count(
                                             held, c.experts.first(holder) + e, &KeptRow::expert)));
  }
  EXPECT_EQ(y.values(4), expected) << name_of(c);
}

// The order of rows is that of the direct exchange, without those that do not fit.
TEST(RowBlocks, BringRowsInTheOrderOfExpertsAndMembers) {
  for (const DType dtype : kFloatDtypes) {
    for (const BlocksCase& c : blocks_cases(dtype)) {
      for (const bool has_weights : {false, true}) {
        const Exchanged all = exchange_by_blocks(c, /*dispatches=*/true, has_weights, run_on_cpu);
        for (int64_t m = 0; m < c.experts.members(); ++m) {
          expect_dispatched(c, all, m, has_weights);
          if (has_weights) {
            expect_offsets(c, all.unpacked[static_cast<size_t>(m)], m);
          }
        }
      }
    }
  }
}

/// What comes back for a row of a member: the sum over those that hold its expert, or what dropped
/// rows bring.
std::vector<double> expected_back(const BlocksCase& c, const Exchanged& all, size_t operand,
                                  int64_t width, const KeptRow& row) {
  std::vector<double> sum(static_cast<size_t>(width), 0.0);
  const int64_t first_holder = row.expert / c.experts.local() * c.experts.copies;
  for (int64_t i = 0; i < c.experts.copies; ++i) {
    const std::vector<KeptRow> held = held_rows(c, first_holder + i);
    const auto found = std::ranges::find_if(held, [&](const KeptRow& it) {
      return it.source == row.source && it.source_row == row.source_row;
    });
    if (found == held.end()) {
      std::ranges::fill(sum, c.experts.drops ? 0.0 : std::nan(""));
      return sum;
    }
    const std::vector<double> addend = row_of(all.packed[static_cast<size_t>(first_holder + i)],
                                              operand, found - held.begin(), width);
    for (size_t k = 0; k < sum.size(); ++k) {
      sum[k] += addend[k];
    }
  }
  return sum;
}

TEST(RowBlocks, BringRowsBackAsTheSumOfTheirCopies) {
  for (const DType dtype : kFloatDtypes) {
    for (const BlocksCase& c : blocks_cases(dtype)) {
      const Exchanged all =
          exchange_by_blocks(c, /*dispatches=*/false, /*has_weights=*/true, run_on_cpu);
      const auto tolerance = [&](DType of) {
        return c.experts.copies == 1 ? Tolerance{}
                                     : Tolerance{.absolute = 4 * rounding_error(wide(of)),
                                                 .relative = 1.01 * rounding_error(of)};
      };
      for (int64_t m = 0; m < c.experts.members(); ++m) {
        const KernelCase& y = all.unpacked[static_cast<size_t>(m)];
        int64_t row = 0;
        for (int64_t e = 0; e < c.experts.experts(); ++e) {
          const int64_t count = c.experts.counts[static_cast<size_t>(m)][static_cast<size_t>(e)];
          for (int64_t i = 0; i < count; ++i, ++row) {
            expect_close(row_of(y, 2, row, c.width), expected_back(c, all, 0, c.width, {m, row, e}),
                         tolerance(dtype), name_of(c));
            expect_close(row_of(y, 3, row, 1), expected_back(c, all, 1, 1, {m, row, e}),
                         tolerance(wide(dtype)), name_of(c));
          }
        }
      }
    }
  }
}

// Two members with two experts each. Member 0 has 1, 3 rows for its own experts and 2, 0 for those
// of member 1, which has 4, 0 and 1, 1.
TEST(RowBlocks, CountRowsThatDoNotFitABlock) {
  const Experts experts{.counts = {{1, 3, 2, 0}, {4, 0, 1, 1}}};
  const auto tally_of = [&](int64_t block_rows, int64_t member) {
    const BlocksCase c{experts, block_rows};
    const Exchanged all =
        exchange_by_blocks(c, /*dispatches=*/true, /*has_weights=*/true, run_on_cpu);
    return all.unpacked[static_cast<size_t>(member)].values(5);
  };
  EXPECT_EQ(tally_of(3, 0), (std::vector<double>{8, 2, 8, 6, 6}));
  EXPECT_EQ(tally_of(3, 1), (std::vector<double>{4, 0, 4, 6, 6}));
  EXPECT_EQ(tally_of(4, 0), (std::vector<double>{8, 0, 8, 8, 6}));
  const Experts uneven{.counts = {{5, 0, 1, 0}, {1, 0, 4, 1}}};
  const BlocksCase c{uneven, 4};
  const Exchanged all = exchange_by_blocks(c, true, true, run_on_cpu);
  EXPECT_EQ(all.unpacked[0].values(5), (std::vector<double>{6, 1, 10, 8, 6}))
      << "a pair with 5 rows needs as much room as two with 5";
}

TEST(RowBlocks, OfSharedExpertsAreCountedOnce) {
  const BlocksCase c{{.counts = {{2, 2}, {4, 0}, {1, 3}}, .copies = 3}, 3};
  const Exchanged all = exchange_by_blocks(c, true, true, run_on_cpu);
  EXPECT_EQ(all.unpacked[0].values(5), (std::vector<double>{12, 3, 12, 9, 12}));
  EXPECT_EQ(all.unpacked[1].values(5), (std::vector<double>{0, 0, 12, 9, 12}));
}

}  // namespace
}  // namespace braid
