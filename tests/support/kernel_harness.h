#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/cpu/kernel.h"
#include "base/dtype.h"
#include "base/float8.h"
#include "base/worker_pool.h"
#include "ir/op_spec.h"
#include "ops/attributes.h"
#include "ops/op.h"

namespace braid {

/// Seeded generator of test data: splitmix64 (Steele et al., 2014), the same on every platform.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  /// Uniform in [low, high).
  double uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(next() >> 11) * 0x1.0p-53);
  }
  /// Uniform in [0, count).
  int64_t below(int64_t count) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(count));
  }
  std::vector<double> uniforms(int64_t count, double low, double high) {
    std::vector<double> list(static_cast<size_t>(count));
    std::generate(list.begin(), list.end(), [&] { return uniform(low, high); });
    return list;
  }

 private:
  uint64_t state_;
};

inline double load_as_double(DType dtype, const std::byte* at) {
  const auto load = [at](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::kF64:
      return load(double{});
    case DType::kF32:
      return static_cast<double>(load(float{}));
    case DType::kBF16:
      return static_cast<double>(static_cast<float>(load(BFloat16{})));
    case DType::kF8E4M3:
      return static_cast<double>(static_cast<float>(load(Float8E4M3{})));
    case DType::kF8E5M2:
      return static_cast<double>(static_cast<float>(load(Float8E5M2{})));
    case DType::kF8E8M0:
      return static_cast<double>(Fp8Scale::from_e8m0(load(uint8_t{})));
    case DType::kI32:
      return static_cast<double>(load(int32_t{}));
    case DType::kI64:
      return static_cast<double>(load(int64_t{}));
    case DType::kU8:
      return static_cast<double>(load(uint8_t{}));
    default:
      throw_internal_error("the kernel harness knows no {}", dtype_name(dtype));
  }
}

inline void store_double(DType dtype, std::byte* at, double value) {
  const auto store = [at](auto stored) { std::memcpy(at, &stored, sizeof(stored)); };
  switch (dtype) {
    case DType::kF64:
      return store(value);
    case DType::kF32:
      return store(static_cast<float>(value));
    case DType::kBF16:
      return store(BFloat16(static_cast<float>(value)));
    case DType::kF8E4M3:
      return store(Float8E4M3(static_cast<float>(value)));
    case DType::kF8E5M2:
      return store(Float8E5M2(static_cast<float>(value)));
    case DType::kF8E8M0:
      return store(Fp8Scale::to_e8m0(std::ilogb(value)));
    case DType::kI32:
      return store(static_cast<int32_t>(value));
    case DType::kI64:
      return store(static_cast<int64_t>(value));
    case DType::kU8:
      return store(static_cast<uint8_t>(value));
    default:
      throw_internal_error("the kernel harness knows no {}", dtype_name(dtype));
  }
}

/// `value` as it is after being stored as `dtype`.
inline double rounded_to(DType dtype, double value) {
  std::byte bytes[8];
  store_double(dtype, bytes, value);
  return load_as_double(dtype, bytes);
}

/// Memory of one operand with canaries on both sides, so that a write outside of it is seen.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes) : bytes_(bytes), storage_(bytes + 2 * kGuardBytes + 64) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data()) + kGuardBytes;
    offset_ = kGuardBytes + static_cast<size_t>((64 - address % 64) % 64);
    std::fill(storage_.begin(), storage_.end(), kCanary);
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer(GuardedBuffer&&) = default;

  std::byte* data() { return storage_.data() + offset_; }
  const std::byte* data() const { return storage_.data() + offset_; }
  std::span<std::byte> bytes() { return {data(), bytes_}; }
  std::span<const std::byte> bytes() const { return {data(), bytes_}; }
  /// All bits 1: a NaN in every floating-point type, -1 in integers.
  void poison() { std::fill_n(data(), bytes_, std::byte{0xFF}); }
  bool guards_intact() const {
    const auto is_canary = [](std::byte b) { return b == kCanary; };
    const auto begin = storage_.begin() + static_cast<ptrdiff_t>(offset_);
    return std::all_of(storage_.begin(), begin, is_canary) &&
           std::all_of(begin + static_cast<ptrdiff_t>(bytes_), storage_.end(), is_canary);
  }

 private:
  static constexpr size_t kGuardBytes = 256;  // wider than any vector store
  static constexpr std::byte kCanary{0xA5};
  size_t bytes_;
  size_t offset_ = 0;
  std::vector<std::byte> storage_;
};

/// A spec and memory for its operands. At first operands that are read hold random values in
/// [-1, 1) (integers: 0), operands that are only written hold NaN.
///
///   KernelCase kernel({.op = "gelu", .attributes = {}, .operands = {read(dtype, {n, f}), ...}});
///   kernel.set(0, {...});
///   kernel.run(2);
///   expect_close(kernel.values(1), expected, tolerance);
class KernelCase {
 public:
  explicit KernelCase(OpSpec spec, uint64_t seed = 1) : spec_(std::move(spec)) {
    TestRandom random(seed);
    for (size_t i = 0; i < spec_.operands.size(); ++i) {
      const OperandSpec& operand = spec_.operands[i];
      buffers_.emplace_back(static_cast<size_t>(operand.shape.num_elems()) *
                            dtype_bytes(operand.dtype));
      if (!reads(operand.access)) {
        buffers_.back().poison();
      } else if (is_floating_point(operand.dtype)) {
        set(i, random.uniforms(operand.shape.num_elems(), -1.0, 1.0));
      } else {
        std::fill_n(buffers_.back().data(), buffers_.back().bytes().size(), std::byte{0});
      }
    }
  }

  const OpSpec& spec() const { return spec_; }
  int64_t num_elems(size_t operand) const { return spec_.operands.at(operand).shape.num_elems(); }

  /// All elements of an operand.
  std::vector<double> values(size_t operand) const {
    const DType dtype = spec_.operands.at(operand).dtype;
    std::vector<double> list(static_cast<size_t>(num_elems(operand)));
    for (size_t i = 0; i < list.size(); ++i) {
      list[i] = load_as_double(dtype, buffers_.at(operand).data() + i * dtype_bytes(dtype));
    }
    return list;
  }
  std::vector<std::byte> bytes(size_t operand) const {
    const auto view = buffers_.at(operand).bytes();
    return {view.begin(), view.end()};
  }

  /// Sets all elements, rounded to the operand's dtype.
  void set(size_t operand, const std::vector<double>& list) {
    const DType dtype = spec_.operands.at(operand).dtype;
    ASSERT_EQ(static_cast<int64_t>(list.size()), num_elems(operand));
    for (size_t i = 0; i < list.size(); ++i) {
      store_double(dtype, buffers_[operand].data() + i * dtype_bytes(dtype), list[i]);
    }
  }
  void set_all(size_t operand, double value) {
    set(operand, std::vector<double>(static_cast<size_t>(num_elems(operand)), value));
  }

  /// Checks the spec, makes the kernel and runs it once; errors of the kernel pass through. Expects
  /// that nothing outside of the written operands has changed.
  void run(int num_workers = 1) {
    check_spec(spec_);
    const CpuKernel kernel = make_cpu_kernel(spec_, num_workers);
    GuardedBuffer scratch(kernel.scratch_bytes);
    scratch.poison();
    std::vector<std::byte*> operands;
    std::vector<std::vector<std::byte>> before;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      operands.push_back(buffers_[i].data());
      before.push_back(bytes(i));
    }
    WorkerPool workers(num_workers);
    kernel.run({.operands = operands, .scratch = scratch.bytes(), .workers = workers});
    EXPECT_TRUE(scratch.guards_intact()) << spec_.op << ": wrote outside of its scratch";
    for (size_t i = 0; i < buffers_.size(); ++i) {
      EXPECT_TRUE(buffers_[i].guards_intact()) << spec_.op << ": wrote outside of operand " << i;
      if (!writes(spec_.operands[i].access)) {
        EXPECT_TRUE(bytes(i) == before[i]) << spec_.op << ": changed its read-only operand " << i;
      }
    }
  }

 private:
  OpSpec spec_;
  std::vector<GuardedBuffer> buffers_;
};

/// The replay of a case that has run: what it reads are the case's bytes, results included.
inline KernelCase replay_of(const KernelCase& original) {
  const std::optional<Replay> rule = find_replay(original.spec());
  KernelCase replay(rule->spec);
  for (size_t i = 0; i < rule->operands.size(); ++i) {
    if (reads(replay.spec().operands[i].access)) {
      replay.set(i, original.values(rule->operands[i]));
    }
  }
  return replay;
}

/// All results of a replay that has run are the bits of the original's.
inline void expect_replayed(const KernelCase& replay, const KernelCase& original,
                            const std::string& name) {
  const std::optional<Replay> rule = find_replay(original.spec());
  for (size_t i = 0; i < rule->operands.size(); ++i) {
    EXPECT_TRUE(replay.bytes(i) == original.bytes(rule->operands[i]))
        << name << " " << replay.spec().op << ": operand " << i << " differs";
  }
}

/// Runs the case with 1, 2 and 3 workers: all operands come out bitwise equal. Sizes must be large
/// enough that the kernel splits them.
inline void expect_same_for_any_workers(const std::function<KernelCase()>& make) {
  KernelCase alone = make();
  alone.run(1);
  for (const int num_workers : {2, 3}) {
    KernelCase shared = make();
    shared.run(num_workers);
    for (size_t i = 0; i < alone.spec().operands.size(); ++i) {
      EXPECT_TRUE(shared.bytes(i) == alone.bytes(i))
          << alone.spec().op << ": operand " << i << " differs with " << num_workers << " workers";
    }
  }
}

inline OperandSpec read(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kRead, .shape = shape};
}
inline OperandSpec write(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kWrite, .shape = shape};
}
inline OperandSpec read_write(DType dtype, Shape shape) {
  return {.dtype = dtype, .access = Access::kReadWrite, .shape = shape};
}
/// What `accumulate` asks of a gradient operand.
inline OperandSpec gradient(bool accumulate, DType dtype, Shape shape) {
  return accumulate ? read_write(dtype, shape) : write(dtype, shape);
}

/// Type of statistics, main grads and optimizer state beside data of `dtype`.
inline DType wide(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

/// |actual - expected| <= absolute + relative * |expected|.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

/// Half a unit in the last place of `dtype`, relative.
inline double rounding_error(DType dtype) {
  return dtype == DType::kF64 ? 0x1.0p-53 : dtype == DType::kF32 ? 0x1.0p-24 : 0x1.0p-8;
}

/// Of a sum of `terms` terms of random sign, each at most `magnitude`, in the arithmetic of
/// `storage` and rounded to it once. Partial sums of n such terms are about sqrt(n) magnitude, and
/// the rounding errors of n additions add up like sqrt(n) of them: together n times half a unit.
/// The worst of ten thousand such sums is 4 times the typical one.
inline Tolerance sum_tolerance(DType storage, double terms, double magnitude = 1.0) {
  return {.absolute = 4 * (terms + 1) * magnitude * rounding_error(wide(storage)),
          .relative = 2 * rounding_error(storage)};
}

inline constexpr DType kFloatDtypes[] = {DType::kF32, DType::kF64, DType::kBF16};

/// Equal NaN and infinities are close. Reports the worst element.
inline void expect_close(const std::vector<double>& actual, const std::vector<double>& expected,
                         Tolerance tolerance, const std::string& what = "") {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double worst = 1;
  size_t at = actual.size();
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    const double limit = tolerance.absolute + tolerance.relative * std::abs(expected[i]);
    const bool same =
        actual[i] == expected[i] || (std::isnan(actual[i]) && std::isnan(expected[i]));
    const bool finite = std::isfinite(error) && std::isfinite(expected[i]);
    const double excess = same     ? 0
                          : finite ? error / std::max(limit, 1e-300)
                                   : std::numeric_limits<double>::infinity();
    if (excess > worst) {
      worst = excess;
      at = i;
    }
  }
  if (at < actual.size()) {
    ADD_FAILURE() << what << " element " << at << ": " << actual[at] << ", expected "
                  << expected[at] << ", " << worst << " times the tolerance";
  }
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

/// Compares `gradient` with central differences of `loss` at x. Differences of step h of a smooth
/// function of order 1 are off by about h^2 + 1e-16/h, 1e-10 at h = 1e-5; the tolerance leaves a
/// factor for large third derivatives and long sums.
inline void expect_gradient(const std::function<double(const std::vector<double>&)>& loss,
                            const std::vector<double>& x, const std::vector<double>& gradient,
                            const std::string& what) {
  ASSERT_EQ(gradient.size(), x.size()) << what;
  constexpr double kStep = 1e-5;
  std::vector<double> numeric(x.size());
  std::vector<double> probe = x;
  for (size_t i = 0; i < x.size(); ++i) {
    probe[i] = x[i] + kStep;
    const double above = loss(probe);
    probe[i] = x[i] - kStep;
    const double below = loss(probe);
    probe[i] = x[i];
    numeric[i] = (above - below) / (2 * kStep);
  }
  expect_close(gradient, numeric, {.absolute = 2e-8, .relative = 2e-7}, what);
}

}  // namespace braid
