// Products and collectives in pieces give the bits of the whole ones, on CPU ranks. The products
// have one term per element, so that no library can round them in two ways: what is compared is
// what the passes make of the communication, and the order of the sum.
#include "passes/ring_exchange.h"

#include <gtest/gtest.h>

#include <fmt/core.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ir/text.h"
#include "parallel/verify_ranks.h"
#include "passes/insert_events.h"
#include "support/cpu_ranks.h"

namespace braid {
namespace {

constexpr int64_t kRows = 3;  // of a rank
constexpr int64_t kFeatures = 5;

std::string tables(int rank, int num_ranks, DType dtype) {
  const std::string_view type = dtype_name(dtype);
  const int64_t all = kRows * num_ranks;
  std::string ranks = "0";
  for (int other = 1; other < num_ranks; ++other) {
    ranks += "," + std::to_string(other);
  }
  std::string text = fmt::format(
      "program step rank={} ranks={} events=0\nstream s kind=compute priority=0\ngroup tensor "
      "kind=tensor ranks={}\n",
      rank, num_ranks, ranks);
  const auto buffer = [&](const char* name, int64_t rows, int64_t columns, const char* kind) {
    text += fmt::format("buffer {} {} [{},{}] {} device\n", name, type, rows, columns, kind);
  };
  buffer("in", kRows, 1, "io persistent");
  buffer("a", all, 1, "io persistent");
  buffer("w", kFeatures, 1, "param persistent");
  buffer("out", kRows, kFeatures, "io persistent");
  buffer("whole", all, kFeatures, "io persistent");
  buffer("copied", all, 1, "io persistent");
  buffer("n", kRows, 1, "activation step");
  buffer("x", all, 1, "activation step");
  buffer("z", all, kFeatures, "activation step");
  return text;
}

constexpr const char* kLinear = " {has_bias=false, adds_bias=true} s forward mb=0 site=a.";

std::string gather_program() {
  return std::string("fill(-> z) {value=0.0} s forward\ncopy(in -> n) s forward mb=0\n") +
         "all_gather(n -> x) {group=0} s comm mb=0 site=a.fc1.input\n"
         "linear(x, w -> whole)" +
         kLinear +
         "fc1\n"
         "copy(x -> copied) s forward mb=0\n";
}

std::string scatter_program() {
  return std::string("linear(a, w -> z)") + kLinear +
         "fc2\n"
         "reduce_scatter(z -> out) {group=0} s comm mb=0 site=a.fc2.sum\n";
}

std::string reduce_program() {
  return std::string("linear(a, w -> z)") + kLinear +
         "fc2\n"
         "all_reduce(-> rw z) {group=0} s comm mb=0 site=a.fc2.sum\n"
         "copy(z -> whole) s forward mb=0\n";
}

std::vector<std::byte> random_values(DType dtype, int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0.0, 1.0);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * dtype_bytes(dtype));
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const double value = normal(random);
    const auto narrow = static_cast<float>(value);
    const BFloat16 narrowest(narrow);
    const void* const from = dtype == DType::kF64   ? static_cast<const void*>(&value)
                             : dtype == DType::kF32 ? static_cast<const void*>(&narrow)
                                                    : static_cast<const void*>(&narrowest);
    std::memcpy(bytes.data() + i * dtype_bytes(dtype), from, dtype_bytes(dtype));
  }
  return bytes;
}

struct Case {
  std::string tasks;
  int num_ranks = 2;
  DType dtype = DType::kF32;
};

/// What all ranks have at the end of three steps with different inputs.
std::vector<std::vector<std::byte>> run_steps(const Case& test, const SiteOverlaps& sites) {
  std::vector<Program> programs;
  for (int rank = 0; rank < test.num_ranks; ++rank) {
    PassResult split =
        ring_exchange(parse_program(tables(rank, test.num_ranks, test.dtype) + test.tasks),
                      {.sites = sites, .min_rows = 1});
    EXPECT_EQ(split.report.changed, !sites.empty());
    programs.push_back(insert_events(std::move(split.program)).program);
  }
  const auto faults =
      verify_ranks(one_program_per_rank(programs), {.one_order_of_collectives = true});
  EXPECT_TRUE(faults.empty()) << faults.front().message;
  CpuRanks ranks(test.num_ranks, [&](int rank) { return programs[static_cast<size_t>(rank)]; });
  std::vector<std::vector<std::byte>> results;
  for (uint64_t step = 0; step < 3; ++step) {
    for (int rank = 0; rank < test.num_ranks; ++rank) {
      Executor& executor = ranks[static_cast<size_t>(rank)];
      const uint64_t seed = 100 * step + static_cast<uint64_t>(rank);
      executor.write("in", 0, random_values(test.dtype, kRows, seed));
      executor.write("a", 0, random_values(test.dtype, kRows * test.num_ranks, seed + 50));
      executor.write("w", 0, random_values(test.dtype, kFeatures, step));
    }
    ranks.run();
    for (int rank = 0; rank < test.num_ranks; ++rank) {
      for (const char* const name : {"out", "whole", "copied"}) {
        const bool is_out = std::string_view(name) == "out";
        const int64_t count = is_out ? kRows * kFeatures
                              : std::string_view(name) == "copied"
                                  ? kRows * test.num_ranks
                                  : kRows * kFeatures * test.num_ranks;
        std::vector<std::byte>& bytes =
            results.emplace_back(static_cast<size_t>(count) * dtype_bytes(test.dtype));
        ranks[static_cast<size_t>(rank)].read(name, 0, bytes);
      }
    }
  }
  return results;
}

class RingExchangeOn : public testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  void expect_same_bits(const std::string& tasks, const SiteOverlaps& sites) const {
    const Case test{
        .tasks = tasks, .num_ranks = std::get<0>(GetParam()), .dtype = std::get<1>(GetParam())};
    EXPECT_TRUE(run_steps(test, sites) == run_steps(test, {}));
  }
};

TEST_P(RingExchangeOn, RingInFrontOfAProduct) {
  expect_same_bits(gather_program(), {{"fc1_fprop", {OverlapMethod::kRing}}});
}

TEST_P(RingExchangeOn, RingBehindAProduct) {
  expect_same_bits(scatter_program(), {{"fc2_fprop", {OverlapMethod::kRing}}});
}

TEST_P(RingExchangeOn, PiecesOfFeatures) {
  for (const int64_t splits : {2, 3, 5}) {
    expect_same_bits(scatter_program(), {{"fc2_fprop", {OverlapMethod::kChunked, splits}}});
  }
}

TEST_P(RingExchangeOn, PiecesOfRows) {
  for (const int64_t splits : {2, 4}) {
    expect_same_bits(reduce_program(), {{"fc2_fprop", {OverlapMethod::kChunked, splits}}});
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, RingExchangeOn,
                         testing::Combine(testing::Values(2, 3, 4, 8),
                                          testing::Values(DType::kF32, DType::kBF16, DType::kF64)));

}  // namespace
}  // namespace braid
