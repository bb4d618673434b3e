// Products and collectives in pieces give the bits of the whole ones, on CPU ranks. The products
// have one term per element, so that no library can round them in two ways: what is compared is
// what the passes make of the communication, and the order of the sum.
#include "passes/tensor/ring_exchange.h"

#include <gtest/gtest.h>

#include <fmt/core.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ir/text.h"
#include "parallel/verify_ranks.h"
#include "passes/streams/insert_events.h"
#include "passes/tensor/fuse_swiglu.h"
#include "support/cpu_ranks.h"

namespace braid {
namespace {

constexpr int64_t kRows = 3;  // of a rank
constexpr int64_t kFeatures = 5;
constexpr int64_t kGates = 16;  // as many elements as a piece must have

std::string tables(int rank, int num_ranks, DType dtype, bool has_swiglu) {
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
  if (has_swiglu) {
    buffer("w1", 2 * kGates, 1, "param persistent");
    buffer("w2", 1, kGates, "param persistent");
    buffer("y", all, kGates, "io persistent");
    buffer("dg", all, 2 * kGates, "io persistent");
    buffer("g", all, 2 * kGates, "activation step");
    buffer("dx", all, 1, "activation step");
    buffer("d", all, kGates, "activation step");
  }
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

/// Forward and backward of SwiGLU between two products.
std::string swiglu_program() {
  return std::string("copy(in -> n) s forward mb=0\n") +
         "all_gather(n -> x) {group=0} s comm mb=0 site=a.fc1.input\n"
         "linear(x, w1 -> g)" +
         kLinear +
         "fc1\n"
         "swiglu(g -> y) s forward mb=0 site=a.act\n"
         "all_gather(n -> dx) {group=0} s comm mb=0 site=a.fc2.sum\n"
         "linear_dgrad(dx, w2 -> d) {accumulate=false} s dgrad mb=0 site=a.fc2\n"
         "swiglu_backward(g, d -> dg) s dgrad mb=0 site=a.act\n";
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

std::string text_of(const Case& test, int rank) {
  const bool has_swiglu = test.tasks.find("swiglu") != std::string::npos;
  return tables(rank, test.num_ranks, test.dtype, has_swiglu) + test.tasks;
}

struct Passes {
  SiteOverlaps sites = {};
  int64_t num_fused = 0;  ///< SwiGLU tasks that fuse_swiglu is to find after it
};

Program passed(Program program, const Passes& passes) {
  PassResult split = ring_exchange(std::move(program), {.sites = passes.sites, .min_rows = 1});
  EXPECT_EQ(split.report.changed, !passes.sites.empty());
  PassResult fused = fuse_swiglu(std::move(split.program), {.enabled = passes.num_fused > 0});
  EXPECT_EQ(fused.report.num_changes, passes.num_fused);
  return insert_events(std::move(fused.program)).program;
}

std::vector<const Buffer*> persistent_buffers(const Program& program) {
  std::vector<const Buffer*> buffers;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.lifetime == Lifetime::kPersistent) {
      buffers.push_back(&buffer);
    }
  }
  return buffers;
}

/// What all ranks have at the end of three steps with different inputs.
std::vector<std::vector<std::byte>> run_steps(const Case& test, const Passes& passes) {
  std::vector<Program> programs;
  for (int rank = 0; rank < test.num_ranks; ++rank) {
    programs.push_back(passed(parse_program(text_of(test, rank)), passes));
  }
  const auto faults =
      verify_ranks(one_program_per_rank(programs), {.one_order_of_collectives = true});
  EXPECT_TRUE(faults.empty()) << faults.front().message;
  CpuRanks ranks(test.num_ranks, [&](int rank) { return programs[static_cast<size_t>(rank)]; });
  const std::vector<const Buffer*> buffers = persistent_buffers(programs.front());
  std::vector<std::vector<std::byte>> results;
  for (uint64_t step = 0; step < 3; ++step) {
    for (int rank = 0; rank < test.num_ranks; ++rank) {
      uint64_t seed = 1000 * step + 100 * static_cast<uint64_t>(rank);
      for (const Buffer* const buffer : buffers) {
        ranks[static_cast<size_t>(rank)].write(
            buffer->name, 0, random_values(test.dtype, buffer->num_elems(), seed++));
      }
    }
    ranks.run();
    for (int rank = 0; rank < test.num_ranks; ++rank) {
      for (const Buffer* const buffer : buffers) {
        std::vector<std::byte>& bytes =
            results.emplace_back(static_cast<size_t>(buffer->size_bytes()));
        ranks[static_cast<size_t>(rank)].read(buffer->name, 0, bytes);
      }
    }
  }
  return results;
}

class RingExchangeOn : public testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  void expect_same_bits(const std::string& tasks, const Passes& passes) const {
    const Case test{
        .tasks = tasks, .num_ranks = std::get<0>(GetParam()), .dtype = std::get<1>(GetParam())};
    EXPECT_TRUE(run_steps(test, passes) == run_steps(test, {}));
  }
};

TEST_P(RingExchangeOn, RingInFrontOfAProduct) {
  expect_same_bits(gather_program(), {.sites = {{"fc1_fprop", {OverlapMethod::kRing}}}});
}

// Alone and as one task with the products, each row as soon as it is there.
TEST_P(RingExchangeOn, SwigluFollowsBlocks) {
  const SiteOverlaps sites = {{"fc1_fprop", {OverlapMethod::kRing}},
                              {"fc2_dgrad", {OverlapMethod::kRing}}};
  expect_same_bits(swiglu_program(), {.sites = sites});
  expect_same_bits(swiglu_program(), {.sites = sites, .num_fused = 2});
}

TEST_P(RingExchangeOn, RingBehindAProduct) {
  expect_same_bits(scatter_program(), {.sites = {{"fc2_fprop", {OverlapMethod::kRing}}}});
}

TEST_P(RingExchangeOn, PiecesOfFeatures) {
  for (const int64_t splits : {2, 3, 5}) {
    expect_same_bits(scatter_program(),
                     {.sites = {{"fc2_fprop", {OverlapMethod::kChunked, splits}}}});
  }
}

TEST_P(RingExchangeOn, PiecesOfRows) {
  for (const int64_t splits : {2, 4}) {
    expect_same_bits(reduce_program(),
                     {.sites = {{"fc2_fprop", {OverlapMethod::kChunked, splits}}}});
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, RingExchangeOn,
                         testing::Combine(testing::Values(2, 3, 4, 8),
                                          testing::Values(DType::kF32, DType::kBF16, DType::kF64)));

}  // namespace
}  // namespace braid
