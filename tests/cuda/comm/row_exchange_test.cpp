// All members of a group on one GPU, one after the other: y as the CPU has it, bit by bit.
#include "backends/cuda/comm/row_exchange.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <bit>
#include <cstring>
#include <limits>
#include <random>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "comm/emulated_call.h"
#include "comm/row_exchange.h"
#include "ops/expert_exchange.h"
#include "support/row_exchange_cases.h"

namespace braid {
namespace {

constexpr std::byte kPoison{0xA5};

/// Rows of one member's x and y with their weights, on the host.
struct MemberMemory {
  std::vector<std::byte> x;
  std::vector<std::byte> weights;
  std::vector<std::byte> y;
  std::vector<std::byte> y_weights;
  std::vector<std::byte> offsets;
  std::vector<std::byte> tally;
  std::vector<std::byte> scales;
  std::vector<std::byte> y_scales;

  static constexpr size_t kParts = 8;
  auto all() {
    return std::array{&x, &weights, &y, &y_weights, &offsets, &tally, &scales, &y_scales};
  }
  /// Of each of them.
  std::array<std::byte*, kParts> data() {
    return {x.data(),       weights.data(), y.data(),      y_weights.data(),
            offsets.data(), tally.data(),   scales.data(), y_scales.data()};
  }
};

std::vector<std::byte> random_bytes(DType dtype, int64_t elems, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> bytes(static_cast<size_t>(elems) * dtype_bytes(dtype));
  for (size_t i = 0; i < static_cast<size_t>(elems); ++i) {
    const float value = normal(random);
    const auto half = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    const auto any = static_cast<uint8_t>(random());
    const void* const from = dtype == DType::kBF16     ? static_cast<const void*>(&half)
                             : dtype_bytes(dtype) == 1 ? static_cast<const void*>(&any)
                                                       : &value;
    std::memcpy(bytes.data() + i * dtype_bytes(dtype), from, dtype_bytes(dtype));
  }
  return bytes;
}

struct Exchanged {
  CommOp op = CommOp::kDispatchRows;
  Experts experts;
  DType dtype = DType::kBF16;
  int64_t width = 8;
  bool has_weights = true;

  /// Of a row: those of FP8 have some.
  int64_t scales() const { return dtype_bytes(dtype) == 1 ? width / 128 : 0; }
  bool dispatches() const { return op == CommOp::kDispatchRows; }
  int64_t sent() const { return dispatches() ? experts.rows() : experts.room; }
  int64_t received() const { return dispatches() ? experts.room : experts.rows(); }

  MemberMemory memory_of(int64_t member) const {
    const auto seed = static_cast<uint32_t>(17 * member + 3);
    const auto poisoned = [](int64_t elems, size_t bytes) {
      return std::vector<std::byte>(static_cast<size_t>(elems) * bytes, kPoison);
    };
    return {.x = random_bytes(dtype, sent() * width, seed),
            .weights = random_bytes(DType::kF32, sent(), seed + 1),
            .y = poisoned(received() * width, dtype_bytes(dtype)),
            .y_weights = poisoned(received(), sizeof(float)),
            .offsets = poisoned(experts.local() + 1, sizeof(int32_t)),
            .tally = std::vector<std::byte>(RoomTally::kSize * sizeof(int64_t), std::byte{1}),
            .scales = random_bytes(DType::kF32, sent() * scales(), seed + 2),
            .y_scales = poisoned(received() * scales(), sizeof(float))};
  }

  /// `data`: as MemberMemory has them.
  CommCall call(const Group& group, const std::array<std::byte*, MemberMemory::kParts>& data,
                const int32_t* offsets_of_all) const {
    CommCall call{.op = op,
                  .group = &group,
                  .send = data[0],
                  .recv = data[2],
                  .send_elems = sent() * width,
                  .recv_elems = received() * width,
                  .dtype = dtype,
                  .what = "a test"};
    call.rows = {.experts = experts.experts(),
                 .copies = experts.copies,
                 .drops = experts.drops,
                 .send_rows = sent(),
                 .recv_rows = received(),
                 .offsets_of_all = offsets_of_all,
                 .has_weights = has_weights};
    if (has_weights) {
      call.rows.send_weights = data[1];
      call.rows.recv_weights = data[3];
    }
    if (scales() > 0) {
      call.rows.scales_of_row = scales();
      call.rows.send_scales = data[6];
      call.rows.recv_scales = data[7];
    }
    if (has_weights && dispatches()) {
      call.rows.offsets = reinterpret_cast<int32_t*>(data[4]);
      call.rows.tally = reinterpret_cast<int64_t*>(data[5]);
    }
    return call;
  }
};

/// The memory of a member on the device, each part at a multiple of 256 bytes plus `shift`, but for
/// its tally, which is of 64-bit integers.
class OnDevice {
 public:
  OnDevice(MemberMemory memory, int64_t shift) : host_(std::move(memory)) {
    int64_t bytes = 0;
    for (const auto* part : host_.all()) {
      begins_.push_back(bytes + (part == &host_.tally ? 0 : shift));
      bytes += (std::ssize(*part) + shift + 255) / 256 * 256;
    }
    arena_ = DeviceArena(bytes, "a member");
    for (size_t i = 0; i < begins_.size(); ++i) {
      copy(data(i), host_.all()[i]->data(), host_.all()[i]->size());
    }
  }

  std::byte* data(size_t part) const { return arena_.data() + begins_[part]; }
  std::array<std::byte*, MemberMemory::kParts> all() const {
    return {data(0), data(1), data(2), data(3), data(4), data(5), data(6), data(7)};
  }

  MemberMemory read() {
    for (size_t i = 0; i < begins_.size(); ++i) {
      copy(host_.all()[i]->data(), data(i), host_.all()[i]->size());
    }
    return host_;
  }

 private:
  static void copy(std::byte* to, const std::byte* from, size_t bytes) {
    BRAID_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  }

  MemberMemory host_;
  std::vector<int64_t> begins_;
  DeviceArena arena_;
};

class RowExchangeOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    int num_gpus = 0;
    if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus < 1) {
      GTEST_SKIP() << "needs a GPU";
    }
  }

  static Group group_of(const Experts& experts) {
    Group group{.name = "experts"};
    for (int rank = 0; rank < experts.members(); ++rank) {
      group.ranks.push_back(rank);
    }
    return group;
  }

  static std::unique_ptr<DeviceArena> on_device(const std::vector<int32_t>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(int32_t));
    auto arena = std::make_unique<DeviceArena>(bytes, "offsets of all");
    BRAID_CUDA_CHECK(
        cudaMemcpy(arena->data(), values.data(), static_cast<size_t>(bytes), cudaMemcpyDefault));
    return arena;
  }

  static void expect_same(MemberMemory gpu, MemberMemory cpu, int64_t member) {
    EXPECT_TRUE(gpu.y == cpu.y) << "rows of member " << member;
    EXPECT_TRUE(gpu.y_weights == cpu.y_weights) << "weights of member " << member;
    EXPECT_TRUE(gpu.offsets == cpu.offsets) << "offsets of member " << member;
    EXPECT_TRUE(gpu.tally == cpu.tally) << "tally of member " << member;
    EXPECT_TRUE(gpu.y_scales == cpu.y_scales) << "scales of member " << member;
    EXPECT_TRUE(gpu.x == cpu.x && gpu.weights == cpu.weights && gpu.scales == cpu.scales)
        << "x of member " << member;
  }

  void expect_as_on_cpu(const Exchanged& given, int64_t shift = 0) {
    const Group group = group_of(given.experts);
    const std::vector<int32_t> offsets = offsets_of_all(given.experts);
    const auto offsets_there = on_device(offsets);
    std::vector<MemberMemory> cpu;
    std::vector<OnDevice> gpu;
    std::vector<RowsOfMember> given_rows;
    RowsOfMembers members;
    for (int64_t m = 0; m < given.experts.members(); ++m) {
      cpu.push_back(given.memory_of(m));
      gpu.emplace_back(given.memory_of(m), shift);
      members.rows.push_back(gpu.back().data(0));
      members.weights.push_back(gpu.back().data(1));
      members.scales.push_back(gpu.back().data(6));
    }
    for (const MemberMemory& member : cpu) {
      given_rows.push_back({member.x.data(), member.weights.data(), member.scales.data()});
    }
    const CudaStream stream(0);
    for (size_t m = 0; m < gpu.size(); ++m) {
      const auto* const there = reinterpret_cast<const int32_t*>(offsets_there->data());
      launch_row_exchange(given.call(group, gpu[m].all(), there), m, members, stream);
    }
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
    for (size_t m = 0; m < gpu.size(); ++m) {
      MemberMemory& own = cpu[m];
      exchange_rows(given.call(group, own.data(), offsets.data()), m, given_rows);
      expect_same(gpu[m].read(), own, static_cast<int64_t>(m));
    }
  }
};

std::vector<Experts> all_experts() {
  std::vector<Experts> all = awkward_experts();
  all.push_back({.counts = {{2, 1, 0, 4}, {0, 5, 1, 1}}, .room = 7});  // too little: a NaN
  std::mt19937 random(5);
  Experts large{.room = 3000};  // the largest number of experts, more rows than warps
  for (int member = 0; member < 4; ++member) {
    std::vector<int64_t> counts(1024, 0);
    for (int row = 0; row < 2500; ++row) {
      const uint32_t expert = random();
      ++counts[expert % (row % 2 == 0 ? 1024 : 300)];
    }
    large.counts.push_back(counts);
  }
  all.push_back(large);
  large.room = 2000;
  large.drops = true;
  all.push_back(large);
  large.copies = 2;
  large.room = 6000;
  all.push_back(large);
  return all;
}

TEST_F(RowExchangeOnGpu, HasTheBitsOfTheCpu) {
  for (const Experts& experts : all_experts()) {
    for (const CommOp op : {CommOp::kDispatchRows, CommOp::kCombineRows}) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        for (const int64_t width : {1, 3, 8, 72, 2056}) {
          if (width * experts.room > 1'000'000) {
            continue;
          }
          SCOPED_TRACE(::testing::Message() << comm_op_name(op) << " of " << experts.members()
                                            << " members, " << experts.experts() << " experts, "
                                            << dtype_name(dtype) << ", width " << width);
          expect_as_on_cpu({.op = op, .experts = experts, .dtype = dtype, .width = width});
          expect_as_on_cpu(
              {.op = op, .experts = experts, .dtype = dtype, .width = width, .has_weights = false});
        }
      }
    }
  }
}

// Fewer scales than lanes of a warp, as many, and more.
TEST_F(RowExchangeOnGpu, BringsFp8RowsWithTheirScales) {
  for (const Experts& experts : all_experts()) {
    for (const int64_t width : {128, 384, 4096, 7168}) {
      if (width * experts.room > 8'000'000) {
        continue;
      }
      for (const bool has_weights : {true, false}) {
        SCOPED_TRACE(::testing::Message() << experts.experts() << " experts, width " << width);
        const Exchanged given{.experts = experts,
                              .dtype = DType::kF8E4M3,
                              .width = width,
                              .has_weights = has_weights};
        expect_as_on_cpu(given);
        expect_as_on_cpu(given, 4);
      }
    }
  }
}

TEST_F(RowExchangeOnGpu, TakesRowsThatAreNotAligned) {
  for (const CommOp op : {CommOp::kDispatchRows, CommOp::kCombineRows}) {
    expect_as_on_cpu({.op = op, .experts = awkward_experts()[3], .width = 16}, 4);
  }
}

/// Once a run has failed, offsets of all may be any numbers, with which a kernel would move rows
/// beyond its memory, for hours.
TEST_F(RowExchangeOnGpu, MovesNothingOnceTheRunHasFailed) {
  const Experts experts = awkward_experts()[3];
  const Group group = group_of(experts);
  std::vector<int32_t> offsets = offsets_of_all(experts);
  std::ranges::fill(offsets, std::numeric_limits<int32_t>::max() / 2);
  offsets.back() = std::numeric_limits<int32_t>::max();
  const auto offsets_there = on_device(offsets);
  const auto failed = on_device({0x01010101});
  for (const CommOp op : {CommOp::kDispatchRows, CommOp::kCombineRows}) {
    const Exchanged given{.op = op, .experts = experts, .width = 16};
    MemberMemory before = given.memory_of(1);
    OnDevice gpu(before, 0);
    const size_t members = group.ranks.size();
    const CudaStream stream(0);
    launch_row_exchange(
        given.call(group, gpu.all(), reinterpret_cast<const int32_t*>(offsets_there->data())), 1,
        {.rows = std::vector<const std::byte*>(members, gpu.data(0)),
         .weights = std::vector<const std::byte*>(members, gpu.data(1)),
         .failed = reinterpret_cast<const uint32_t*>(failed->data())},
        stream);
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
    if (given.dispatches()) {
      std::ranges::fill(before.offsets, std::byte{0});  // experts get no rows
    }
    expect_same(gpu.read(), before, 1);
  }
}

TEST_F(RowExchangeOnGpu, IsEmulatedAsOnTheCpu) {
  for (const Experts& experts : all_experts()) {
    Experts alike = experts;  // an emulated rank gathers its own offsets
    std::ranges::fill(alike.counts, experts.counts[0]);
    for (const CommOp op : {CommOp::kDispatchRows, CommOp::kCombineRows}) {
      const Exchanged given{.op = op, .experts = alike, .width = 40};
      const Group group = group_of(alike);
      const std::vector<int32_t> offsets = offsets_of_all(alike);
      const auto offsets_there = on_device(offsets);
      for (size_t m : {size_t{0}, group.ranks.size() - 1}) {
        MemberMemory cpu = given.memory_of(0);
        OnDevice gpu(cpu, 0);
        const CudaStream stream(0);
        const auto* const there = reinterpret_cast<const int32_t*>(offsets_there->data());
        launch_emulated_row_exchange(given.call(group, gpu.all(), there), m, stream);
        BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
        run_emulated({.member = m}, given.call(group, cpu.data(), offsets.data()), {},
                     /*is_first_step=*/true);
        expect_same(gpu.read(), cpu, static_cast<int64_t>(m));
      }
    }
  }
}

}  // namespace
}  // namespace braid
