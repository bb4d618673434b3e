// The backward of a product whose gradient ranks gather as FP8 copies: one recorded step, run again
// and again on other data, while columns cross beside the dgrad and ranks are late at random. A
// gather that starts too early, or writes over what is still read, gives other bits.
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/float8.h"
#include "ir/text.h"
#include "parallel/verify_ranks.h"
#include "passes/streams/insert_events.h"
#include "passes/tensor/bulk_overlap.h"
#include "support/cpu_ranks.h"
#include "support/thinned.h"

namespace braid {
namespace {

constexpr int64_t kTokens = 128;  // of a rank: one block of columns
constexpr int64_t kWidth = 128;   // of dy
constexpr int64_t kInputs = 16;   // of the product
constexpr int kRanks = 3;
constexpr const char* kResults[] = {"dx", "g"};

/// "dy" is the step's data.
std::string tables(int rank) {
  std::string text = fmt::format(
      "program step rank={} ranks={} events=0\nstream s kind=compute priority=0\ngroup tensor "
      "kind=tensor ranks=0,1,2\n",
      rank, kRanks);
  const auto buffer = [&](const char* name, const char* dtype, int64_t rows, int64_t columns,
                          const char* kind) {
    text += fmt::format("buffer {} {} [{},{}] {} device\n", name, dtype, rows, columns, kind);
  };
  const int64_t all = kRanks * kTokens;
  buffer("dy", "bf16", kTokens, kWidth, "io persistent");
  buffer("x8t", "f8e4m3", kInputs, all, "io persistent");
  buffer("x_scales", "f32", kRanks, kInputs, "io persistent");
  buffer("w8t", "f8e4m3", kInputs, kWidth, "param persistent");
  buffer("w_scales", "f32", 1, 4, "param persistent");
  buffer("dx", "f32", all, kInputs, "io persistent");
  buffer("g", "f32", kWidth, kInputs, "main_grad persistent");
  buffer("p8", "f8e4m3", kTokens, kWidth, "activation step");
  buffer("p_scales", "f32", 1, kTokens, "activation step");
  buffer("p8t", "f8e4m3", kWidth, kTokens, "activation step");
  buffer("pt_scales", "f32", 1, kWidth, "activation step");
  buffer("dy8", "f8e4m3", all, kWidth, "activation step");
  buffer("b", "f32", kRanks, kTokens, "activation step");
  buffer("dy_scales", "f32", 1, all, "activation step");
  buffer("bt", "f8e4m3", kRanks * kWidth, kTokens, "activation step");
  buffer("dy8t", "f8e4m3", kWidth, all, "activation step");
  buffer("dyt_scales", "f32", kRanks, kWidth, "activation step");
  return text;
}

/// The step as quantize_products writes it.
std::string tasks() {
  const auto gather = [](const char* from, const char* to) {
    return fmt::format("all_gather({} -> {}) {{group=0}} s comm mb=0 layer=0 site=a.fc2.sum\n",
                       from, to);
  };
  return "quantize(dy -> p8, p_scales, p8t, pt_scales) {block=128, square=false, row=true, "
         "column=true, has_bias=false, accumulate=true} s dgrad mb=0 layer=0\n" +
         gather("p8", "dy8") + gather("p_scales", "b") +
         "join_blocks(b -> dy_scales) s dgrad mb=0 layer=0\n"
         "scaled_linear_dgrad(dy8, dy_scales, w8t, w_scales -> dx) {block=128} s dgrad mb=0 "
         "layer=0 site=a.fc2\n" +
         gather("pt_scales", "dyt_scales") + gather("p8t", "bt") +
         "join_blocks(bt -> dy8t) s wgrad mb=0 layer=0\n"
         "scaled_linear_wgrad(x8t, x_scales, dy8t, dyt_scales -> g) {block=128, "
         "accumulate=false} s wgrad mb=0 layer=0 site=a.fc2\n";
}

std::vector<Program> programs_of(bool overlaps) {
  std::vector<Program> programs;
  for (int rank = 0; rank < kRanks; ++rank) {
    Program program = parse_program(tables(rank) + tasks());
    if (overlaps) {
      const PassResult moved = bulk_overlap(std::move(program), {});
      EXPECT_EQ(moved.report.num_changes, 2);  // columns and their scales
      program = moved.program;
    }
    programs.push_back(insert_events(std::move(program)).program);
  }
  const auto faults =
      verify_ranks(one_program_per_rank(programs), {.one_order_of_collectives = true});
  EXPECT_TRUE(faults.empty()) << faults.front().message;
  return programs;
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// Of very different sizes.
template <class T>
std::vector<T> random_values(std::mt19937& random, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) {
    const uint32_t bits = random();
    value =
        T(std::ldexp(static_cast<float>(bits >> 16) - 32768.0F, static_cast<int>(bits % 16) - 16));
  }
  return values;
}

/// What stays the same: the weight, and the input of the product.
void write_constants(CpuExecutor& rank) {
  std::mt19937 random(7);
  rank.write("x8t", 0, bytes_of(random_values<Float8E4M3>(random, kInputs * kRanks * kTokens)));
  rank.write("w8t", 0, bytes_of(random_values<Float8E4M3>(random, kInputs * kWidth)));
  rank.write("x_scales", 0, bytes_of(std::vector<float>(kRanks * kInputs, 1.0F)));
  rank.write("w_scales", 0, bytes_of(std::vector<float>(4, 1.0F)));
}

/// Ranks that are late now and then, each at other tasks.
std::vector<TaskHook> late_ranks() {
  std::vector<TaskHook> hooks;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    hooks.push_back(random_delays(rank));
  }
  return hooks;
}

std::vector<std::byte> results_of(CpuRanks& ranks) {
  std::vector<std::byte> results;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    for (const char* const buffer : kResults) {
      const auto count = static_cast<size_t>(
          std::string_view(buffer) == "dx" ? kRanks * kTokens * kInputs : kWidth * kInputs);
      const std::vector<float> values = read_floats(ranks[rank], buffer, count);
      const auto bytes = bytes_of(values);
      results.insert(results.end(), bytes.begin(), bytes.end());
    }
  }
  return results;
}

TEST(GatheredCopies, AnyDelaysOfRanksGiveTheSameBits) {
  constexpr uint32_t kSteps = thinned_count(200u, 10);
  const std::vector<Program> in_order = programs_of(/*overlaps=*/false);
  const std::vector<Program> overlapped = programs_of(/*overlaps=*/true);
  CpuRanks expected(kRanks, [&](int rank) { return in_order[static_cast<size_t>(rank)]; });
  CpuRanks found(kRanks, [&](int rank) { return overlapped[static_cast<size_t>(rank)]; },
                 {.hooks = late_ranks()});
  for (size_t rank = 0; rank < kRanks; ++rank) {
    write_constants(expected[rank]);
    write_constants(found[rank]);
  }
  std::mt19937 random(1);
  std::vector<std::byte> last;
  for (uint32_t step = 0; step < kSteps; ++step) {
    for (size_t rank = 0; rank < kRanks; ++rank) {
      const auto dy = bytes_of(random_values<BFloat16>(random, kTokens * kWidth));
      expected[rank].write("dy", 0, dy);
      found[rank].write("dy", 0, dy);
    }
    expected.run();
    found.run();
    std::vector<std::byte> results = results_of(expected);
    ASSERT_TRUE(results_of(found) == results) << "step " << step;
    ASSERT_FALSE(results == last) << "step " << step;
    last = std::move(results);
  }
}

}  // namespace
}  // namespace braid
