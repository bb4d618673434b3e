#include "support/cached_cases.h"

namespace braid {
namespace {

/// All sequences, in runs of up to `rows` tokens of each, give what mamba2 gives for the whole.
void expect_whole_states(const Mamba2Case& whole_case, int64_t rows, DType dtype) {
  KernelCase whole = whole_case.forward(dtype);
  whole.run();
  const CachedMamba2Case c{whole_case, rows};
  const int64_t sequence = whole_case.a.sequence;
  KernelCase cached = c.make(dtype);
  for (size_t weight = 1; weight < 7; ++weight) {
    cached.set(weight, whole.values(weight));
  }
  for (int64_t begin = 0; begin < sequence; begin += rows) {
    const int64_t count = std::min(rows, sequence - begin);
    const auto part = [&](size_t operand, double padding) {
      const std::vector<double> all = whole.values(operand);
      const int64_t width = std::ssize(all) / whole_case.rows();
      std::vector<double> some;
      for (int64_t batch = 0; batch < whole_case.batches; ++batch) {
        const auto first = all.begin() + (batch * sequence + begin) * width;
        some.insert(some.end(), first, first + count * width);
        some.resize(some.size() + static_cast<size_t>((rows - count) * width), padding);
      }
      return some;
    };
    cached.set(0, part(0, std::nan("")));
    cached.set_all(7, static_cast<double>(begin));
    cached.set_all(8, static_cast<double>(count));
    cached.run(2);
    // y is rounded before the norm in both, and may be rounded otherwise.
    expect_close(cached.values(11), part(9, 0.0),
                 {.absolute = 256 * rounding_error(wide(dtype)) + 4 * rounding_error(dtype),
                  .relative = 4 * rounding_error(dtype)});
  }
}

TEST(CachedMamba2, GivesTheResultsOfTheWholeSequence) {
  for (const DType dtype : kFloatDtypes) {
    for (const Mamba2Case& c : whole_mamba2_cases()) {
      for (const int64_t rows : {1, 3, 64}) {
        expect_whole_states(c, std::min(rows, c.a.sequence), dtype);
      }
    }
  }
}

TEST(CachedMamba2, LeavesASequenceWithoutRowsAsItIs) {
  CachedMamba2Case c{whole_mamba2_cases()[1], 2};
  KernelCase cached = c.make(DType::kF32);
  const std::vector<double> window = cached.values(9);
  const std::vector<double> states = cached.values(10);
  cached.set_all(7, 3);
  cached.run();  // counts are 0
  EXPECT_EQ(cached.values(9), window);
  EXPECT_EQ(cached.values(10), states);
  EXPECT_EQ(cached.values(11), std::vector<double>(static_cast<size_t>(cached.num_elems(11)), 0.0));
}

}  // namespace
}  // namespace braid
