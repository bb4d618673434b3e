// What split_task makes of a task gives the whole one's bits on the CPU: of products where every
// sum is exact (small integers), of everything else with any data.
#include "passes/tensor/split_task.h"

#include <gtest/gtest.h>

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/float8.h"
#include "ir/text.h"
#include "support/cpu_executors.h"

namespace braid {
namespace {

struct Case {
  std::string task;
  /// Buffers of 70 rows unless the name says otherwise: name to shape.
  std::map<std::string, std::string> buffers;
  bool integers = false;
};

constexpr const char* kAttention =
    " {heads=2, kv_heads=1, head_size=4, sequence=14, scale=0.5} s forward\n";

std::vector<Case> cases() {
  const std::string norm = " {epsilon=1e-05} s forward\n";
  return {
      {"linear(x, w, b -> y) {has_bias=true, adds_bias=true} s forward\n",
       {{"x", "70,12"}, {"w", "33,12"}, {"b", "33"}, {"y", "70,33"}},
       true},
      {"linear_dgrad(y, w -> rw x) {accumulate=true} s dgrad\n",
       {{"x", "70,12"}, {"w", "33,12"}, {"y", "70,33"}},
       true},
      {"linear_wgrad(x, y -> rw g, rw d) {has_bias=true, accumulate=true} s wgrad\n",
       {{"x", "21,12"}, {"y", "21,70"}, {"g", "70,12"}, {"d", "70"}},
       true},
      {"linear_wgrad(x, y -> g) {has_bias=false, accumulate=false} s wgrad\n",
       {{"x", "21,12"}, {"y", "21,70"}, {"g", "70,12"}},
       true},
      {"rmsnorm(x, w -> y, r)" + norm, {{"x", "70,12"}, {"w", "12"}, {"y", "70,12"}, {"r", "70"}}},
      {"add_rmsnorm(x, a, w -> h, y, r)" + norm,
       {{"x", "70,12"}, {"a", "70,12"}, {"h", "70,12"}, {"w", "12"}, {"y", "70,12"}, {"r", "70"}}},
      {"layernorm(x, w, b -> y, m, r)" + norm,
       {{"x", "70,12"}, {"w", "12"}, {"b", "12"}, {"y", "70,12"}, {"m", "70"}, {"r", "70"}}},
      {"add_layernorm(x, a, w, b -> h, y, m, r)" + norm,
       {{"x", "70,12"},
        {"a", "70,12"},
        {"w", "12"},
        {"b", "12"},
        {"h", "70,12"},
        {"y", "70,12"},
        {"m", "70"},
        {"r", "70"}}},
      {"add(x, a -> y) s dgrad\n", {{"x", "70,12"}, {"a", "70,12"}, {"y", "70,12"}}},
      {"accumulate(x -> rw y) s dgrad\n", {{"x", "70,12"}, {"y", "70,12"}}},
      {"copy(x -> y) s dgrad\n", {{"x", "70,3,4"}, {"y", "70,3,4"}}},
      {"gelu(x -> y) s forward\n", {{"x", "70,12"}, {"y", "70,12"}}},
      {"gelu_backward(x, a -> y) s dgrad\n", {{"x", "70,12"}, {"a", "70,12"}, {"y", "70,12"}}},
      {"swiglu(x -> y) s forward\n", {{"x", "70,24"}, {"y", "70,12"}}},
      {"swiglu_backward(x, a -> y) s dgrad\n", {{"x", "70,24"}, {"a", "70,12"}, {"y", "70,24"}}},
      {"rope(q -> y) {heads=2, kv_heads=1, head_size=4, sequence=7, theta=10000.0, "
       "inverse=false} s forward\n",
       {{"q", "140,16"}, {"y", "140,16"}}},
      {std::string("attention(q -> a, l)") + kAttention,
       {{"q", "224,16"}, {"a", "224,8"}, {"l", "16,2,14"}}},
      {std::string("attention_backward(q, a, l, d -> y)") + kAttention,
       {{"q", "224,16"}, {"a", "224,8"}, {"l", "16,2,14"}, {"d", "224,8"}, {"y", "224,16"}}},
  };
}

Program whole_program(const Case& test) {
  std::string text = "program step rank=0 ranks=1 events=0\nstream s kind=compute priority=0\n";
  for (const auto& [name, shape] : test.buffers) {
    text += fmt::format("buffer {} f32 [{}] io persistent device\n", name, shape);
  }
  return parse_program(text + test.task);
}

/// Every buffer after a run, all of which began with the same random values.
std::vector<std::vector<float>> run(const Program& program, bool integers) {
  LoneCpuExecutor executor({program}, {});
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  const auto bytes_of = [](std::vector<float>& values) {
    return std::as_writable_bytes(std::span(values));
  };
  std::vector<std::vector<float>> all;
  for (const Buffer& buffer : program.buffers) {
    std::vector<float>& values = all.emplace_back(static_cast<size_t>(buffer.num_elems()));
    for (float& value : values) {
      value = integers ? std::round(4 * normal(random)) : normal(random);
    }
    executor.write(buffer.name, 0, bytes_of(values));
  }
  executor.run(0);
  for (size_t i = 0; i < all.size(); ++i) {
    executor.read(program.buffers[i].name, 0, bytes_of(all[i]));
  }
  return all;
}

TEST(SplitTaskOnTheCpu, PiecesGiveTheBitsOfTheWhole) {
  for (const Case& test : cases()) {
    SCOPED_TRACE(test.task);
    const Program whole = whole_program(test);
    const auto expected = run(whole, test.integers);
    for (const int64_t pieces : {2, 3, 5}) {
      const Program split = split_task(whole, TaskId(0), pieces);
      ASSERT_GT(split.tasks.size(), 1U);
      const auto found = run(split, test.integers);
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(std::memcmp(found[i].data(), expected[i].data(), found[i].size() * sizeof(float)),
                  0)
            << whole.buffers[i].name << " in " << pieces << " pieces";
      }
    }
  }
}

/// The three FP8 products, with 384 rows or features that may be cut. Scales are small powers of
/// two: all sums are exact, so it does not matter in which order a BLAS library adds up a piece.
std::string fp8_program(int64_t block) {
  std::string text = "program step rank=0 ranks=1 events=0\nstream s kind=compute priority=0\n";
  const auto buffer = [&](const char* name, const char* dtype, const std::string& shape) {
    text += fmt::format("buffer {} {} [{}] io persistent device\n", name, dtype, shape);
  };
  const auto scales = [&](const char* name, const std::string& shape) {
    buffer(name, "f32", block == 0 ? "1" : shape);
  };
  buffer("x", "f8e4m3", "384,256");
  scales("xs", "2,384");
  buffer("w", "f8e4m3", "128,256");
  scales("ws", "1,4");
  buffer("y", "f32", "384,128");
  buffer("v", "f8e4m3", "128,256");
  scales("vs", "2,128");
  buffer("g", "f32", "384,128");
  const std::string of = fmt::format("{{block={}", block);
  return text + "scaled_linear(x, xs, w, ws -> y) " + of +
         ", has_bias=false, adds_bias=true} s forward\n"
         "scaled_linear_dgrad(x, xs, w, ws -> y) " +
         of +
         "} s dgrad\n"
         "scaled_linear_wgrad(v, vs, x, xs -> rw g) " +
         of + ", accumulate=true} s wgrad\n";
}

std::vector<float> run_fp8(const Program& program, const std::string& result) {
  LoneCpuExecutor executor({program}, {});
  std::mt19937_64 random(7);
  for (const Buffer& buffer : program.buffers) {
    if (buffer.lifetime != Lifetime::kPersistent) {
      continue;
    }
    std::vector<float> scales(static_cast<size_t>(buffer.num_elems()));
    std::vector<Float8E4M3> values;
    for (float& scale : scales) {
      scale = std::ldexp(1.0F, static_cast<int>(random() % 3));
      values.emplace_back(static_cast<float>(random() % 64) - 32.0F);
    }
    executor.write(buffer.name, 0,
                   buffer.dtype == DType::kF32 ? std::as_bytes(std::span(scales))
                                               : std::as_bytes(std::span(values)));
  }
  executor.run(0);
  return read_floats(executor, result, 384 * 128);
}

TEST(SplitTaskOnTheCpu, PiecesOfFp8ProductsReadTheScalesOfTheirRows) {
  for (const int64_t block : {0, 128}) {
    const Program all = parse_program(fp8_program(block));
    for (uint32_t task = 0; task < all.tasks.size(); ++task) {
      const std::string& op = all.spec(all.tasks[task]).op;
      const std::string result = op == "scaled_linear_wgrad" ? "g" : "y";
      const Program whole = select_tasks(all, std::array{TaskId(task)});
      const std::vector<float> expected = run_fp8(whole, result);
      for (const int64_t pieces : {2, 3}) {
        const Program split = split_task(whole, TaskId(0), pieces);
        EXPECT_EQ(split.tasks.size(), static_cast<size_t>(block == 0 ? pieces : 2 * pieces));
        EXPECT_EQ(run_fp8(split, result), expected) << op << " in " << pieces;
      }
    }
  }
}

// bf16 from f32 and back are no ops of one dtype.
TEST(SplitTaskOnTheCpu, CastsInPieces) {
  const Program whole = parse_program(
      "program step rank=0 ranks=1 events=0\nstream s kind=compute priority=0\n"
      "buffer x f32 [70,5] io persistent device\nbuffer h bf16 [70,5] activation step device\n"
      "buffer y f32 [70,5] io persistent device\n"
      "cast(x -> h) s forward\ncast(h -> y) s forward\n");
  const Program split = split_task(split_task(whole, TaskId(0), 3), TaskId(3), 4);
  ASSERT_EQ(split.tasks.size(), 7U);
  LoneCpuExecutor one({whole}, {});
  LoneCpuExecutor other({split}, {});
  std::vector<float> values(350);
  std::mt19937_64 random(3);
  for (float& value : values) {
    value = std::normal_distribution<float>(0.0F, 1.0F)(random);
  }
  std::vector<std::vector<float>> results;
  for (LoneCpuExecutor* executor : {&one, &other}) {
    executor->write("x", 0, std::as_bytes(std::span(values)));
    executor->run(0);
    executor->read("y", 0, std::as_writable_bytes(std::span(results.emplace_back(350))));
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace braid
