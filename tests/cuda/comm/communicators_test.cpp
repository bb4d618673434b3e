#include "backends/cuda/comm/communicators.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <random>

#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/run_ranks.h"
#include "base/errors.h"
#include "base/expect_error.h"
#include "ops/attributes.h"
#include "ops/collectives.h"

namespace braid {
namespace {

using ::testing::ElementsAre;

Label comm_label() {
  return {.phase = Phase::kComm};
}

OpSpec spec_of(std::string_view op, std::vector<Attribute> attributes, int64_t x, int64_t y,
               DType dtype = DType::kF32) {
  OpSpec spec{.op = std::string(op), .attributes = std::move(attributes), .operands = {}};
  const auto operand = [&](int64_t elems, Access access) {
    return OperandSpec{.dtype = dtype, .access = access, .shape = Shape{elems}};
  };
  if (x > 0) {
    spec.operands.push_back(operand(x, Access::kRead));
  }
  if (y > 0) {
    spec.operands.push_back(operand(y, Access::kWrite));
  }
  return spec;
}

/// One rank's program of one task with buffers of its own.
Program one_call(int rank, const Group& group, const OpSpec& spec) {
  ProgramBuilder builder("calls", rank, 4);
  builder.add_group(group);
  const StreamId stream = builder.add_stream({.name = "comm", .kind = StreamKind::kComm});
  std::vector<BufferRange> operands;
  for (const OperandSpec& operand : spec.operands) {
    operands.push_back(
        builder.whole(builder.add_buffer({.name = "b" + std::to_string(operands.size()),
                                          .dtype = operand.dtype,
                                          .shape = operand.shape,
                                          .lifetime = Lifetime::kPersistent})));
  }
  builder.add_task(spec, operands, stream, comm_label());
  return builder.take();
}

TEST(CommunicatorKeys, CollectivesHaveOnePerGroupAndMessagesOnePerDirection) {
  const Group group{"pipeline", GroupKind::kPipeline, {1, 3}};
  const auto key_of = [&](const OpSpec& spec) {
    const Program program = one_call(3, group, spec);
    return describe_key(communicator_key(program, program.tasks[0]).value());
  };
  const auto message = to_attributes(MessageAttributes{.group = 0, .peer = 0, .channel = 2});
  EXPECT_EQ(key_of(spec_of("send", message, 8, 0)), "pipeline messages of ranks 3, 1");
  EXPECT_EQ(key_of(spec_of("recv", message, 0, 8)), "pipeline messages of ranks 1, 3");
  EXPECT_EQ(key_of(spec_of("all_gather", to_attributes(CollectiveAttributes{}), 8, 16)),
            "pipeline of ranks 1, 3");
}

// They have another policy than its kernels.
TEST(CommunicatorKeys, CopiesOfNcclHaveOneOfTheirOwn) {
  const Group group{"data", GroupKind::kData, {1, 3}};
  const OpSpec gather = spec_of("all_gather", to_attributes(CollectiveAttributes{}), 8, 16);
  const Program by_copies = one_call(3, group, by_nccl_copies(gather));
  const auto key = communicator_key(by_copies, by_copies.tasks[0]).value();
  EXPECT_TRUE(key.by_copies);
  EXPECT_EQ(describe_key(key), "data by copies of ranks 1, 3");
  const std::vector<Program> programs{by_copies, one_call(3, group, gather)};
  EXPECT_EQ(communicator_keys(programs).size(), 2u);
}

TEST(CommunicatorKeys, NoneForGroupsOfOneRank) {
  const Program program =
      one_call(2, {"data", GroupKind::kData, {2}},
               spec_of("all_gather", to_attributes(CollectiveAttributes{}), 8, 8));
  EXPECT_EQ(communicator_key(program, program.tasks[0]), std::nullopt);
  EXPECT_TRUE(communicator_keys({&program, 1}).empty());
}

TEST(CommunicatorKeys, AreInOneOrderOnAllRanks) {
  const auto gather = spec_of("all_gather", to_attributes(CollectiveAttributes{}), 8, 16);
  const std::vector<Program> programs{one_call(1, {"tensor", GroupKind::kTensor, {0, 1}}, gather),
                                      one_call(1, {"data", GroupKind::kData, {1, 3}}, gather),
                                      one_call(1, {"tensor", GroupKind::kTensor, {0, 1}}, gather)};
  std::vector<std::string> names;
  for (const CommunicatorKey& key : communicator_keys(programs)) {
    names.push_back(describe_key(key));
  }
  EXPECT_THAT(names, ElementsAre("data of ranks 1, 3", "tensor of ranks 0, 1"));
}

/// Each rank of a machine with several GPUs makes the same call with random operands.
class NcclCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cudaGetDeviceCount(&num_gpus_) != cudaSuccess || num_gpus_ < 2) {
      GTEST_SKIP() << "needs 2 GPUs";
    }
    if (const std::string reason = why_no_nccl(); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    num_ranks_ = std::min(num_gpus_, 4);
  }

  Group group() const {
    Group all{"tensor", GroupKind::kTensor, {}};
    for (int rank = 0; rank < num_ranks_; ++rank) {
      all.ranks.push_back(rank);
    }
    return all;
  }

  /// y of each rank; x of each rank is in `x_`. Operands of other types than f32 have the bits of
  /// these values.
  std::vector<std::vector<float>> run(const OpSpec& spec) {
    std::mt19937 random(7);
    const int64_t x_elems = num_floats(spec.operands.front());
    const int64_t y_elems = num_floats(spec.operands.back());
    x_.assign(static_cast<size_t>(num_ranks_), {});
    for (auto& x : x_) {
      for (int64_t i = 0; i < x_elems; ++i) {
        x.push_back(static_cast<float>(static_cast<int>(random() % 2001) - 1000));
      }
    }
    std::vector<std::vector<float>> y(static_cast<size_t>(num_ranks_));
    const auto meeting = make_in_process_rendezvous(num_ranks_, 60'000'000'000);
    run_side_by_side(y.size(), [&](size_t rank) {
      y[rank] = run_rank(static_cast<int>(rank), spec, *meeting[rank], y_elems);
    });
    return y;
  }

  const std::vector<std::vector<float>>& x() const { return x_; }
  int64_t num_ranks() const { return num_ranks_; }

 private:
  static int64_t num_floats(const OperandSpec& operand) {
    return operand.shape.num_elems() * static_cast<int64_t>(dtype_bytes(operand.dtype)) /
           static_cast<int64_t>(sizeof(float));
  }

  std::vector<float> run_rank(int rank, const OpSpec& spec, Rendezvous& meeting, int64_t y_elems) {
    BRAID_CUDA_CHECK(cudaSetDevice(rank));
    const Program program = one_call(rank, group(), spec);
    const Communicators communicators({&program, 1}, meeting);
    const CudaKernel kernel = communicators.make_kernel(program, program.tasks[0]);
    const std::vector<float>& x = x_[static_cast<size_t>(rank)];
    const auto x_bytes = static_cast<int64_t>(x.size() * sizeof(float));
    const int64_t y_bytes = y_elems * static_cast<int64_t>(sizeof(float));
    DeviceArena x_arena(x_bytes, "x");
    DeviceArena y_arena(y_bytes, "y");
    const CudaStream stream(0);
    BRAID_CUDA_CHECK(
        cudaMemcpy(x_arena.data(), x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice));
    BRAID_CUDA_CHECK(cudaMemset(y_arena.data(), 0xFF, static_cast<size_t>(y_bytes)));
    const std::vector<std::byte*> operands = spec.operands.size() == 1
                                                 ? std::vector{x_arena.data()}
                                                 : std::vector{x_arena.data(), y_arena.data()};
    kernel.launch({.operands = operands, .scratch = nullptr, .stream = stream});
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
    std::vector<float> y(static_cast<size_t>(y_elems));
    BRAID_CUDA_CHECK(
        cudaMemcpy(y.data(), operands.back(), y.size() * sizeof(float), cudaMemcpyDeviceToHost));
    return y;
  }

  int num_gpus_ = 0;
  int num_ranks_ = 0;
  std::vector<std::vector<float>> x_;
};

// Whole numbers, so that sums are exact in any order.
TEST_F(NcclCalls, CollectivesAreWhatTheirOpsSay) {
  const int64_t n = num_ranks();
  constexpr int64_t kBlock = 1003;
  const auto plain = to_attributes(CollectiveAttributes{});
  const auto sum_at = [&](size_t i) {
    float sum = 0;
    for (const auto& x : this->x()) {
      sum += x[i];
    }
    return sum;
  };
  const auto block = static_cast<size_t>(kBlock);

  const auto reduced = run(spec_of("all_reduce", plain, kBlock, kBlock));
  const auto gathered = run(spec_of("all_gather", plain, kBlock, n * kBlock));
  for (size_t rank = 0; rank < gathered.size(); ++rank) {
    for (size_t from = 0; from < gathered.size(); ++from) {
      EXPECT_TRUE(std::equal(x()[from].begin(), x()[from].end(),
                             gathered[rank].begin() + static_cast<std::ptrdiff_t>(from * block)))
          << rank << " of " << from;
    }
    for (size_t i = 0; i < block; ++i) {
      ASSERT_EQ(reduced[rank][i], sum_at(i));
    }
  }
  const auto scattered = run(spec_of("reduce_scatter", plain, n * kBlock, kBlock));
  const auto exchanged = run(spec_of("all_to_all", plain, n * kBlock, n * kBlock));
  for (size_t rank = 0; rank < scattered.size(); ++rank) {
    for (size_t i = 0; i < block; ++i) {
      ASSERT_EQ(scattered[rank][i], sum_at(rank * block + i));
      for (size_t from = 0; from < scattered.size(); ++from) {
        ASSERT_EQ(exchanged[rank][from * block + i], x()[from][rank * block + i]);
      }
    }
  }
}

// NCCL has no type for some of these; a call that only moves elements depends on their size alone.
TEST_F(NcclCalls, MoveElementsOfAnyType) {
  constexpr int64_t kFloats = 1002;
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2, DType::kU8, DType::kBF16, DType::kU16,
                            DType::kI64, DType::kF64}) {
    SCOPED_TRACE(dtype_name(dtype));
    const int64_t elems =
        kFloats * static_cast<int64_t>(sizeof(float)) / static_cast<int64_t>(dtype_bytes(dtype));
    const auto gathered = run(spec_of("all_gather", to_attributes(CollectiveAttributes{}), elems,
                                      num_ranks() * elems, dtype));
    std::vector<float> expected;
    for (const auto& x : this->x()) {
      expected.insert(expected.end(), x.begin(), x.end());
    }
    for (const std::vector<float>& y : gathered) {
      EXPECT_EQ(y, expected);
    }
  }
}

TEST_F(NcclCalls, RootsAndRings) {
  const int64_t n = num_ranks();
  constexpr int64_t kElems = 515;
  const auto root = to_attributes(RootAttributes{.group = 0, .root = n - 1});
  const auto last = static_cast<size_t>(n - 1);
  for (const auto& y : run(spec_of("broadcast", root, kElems, kElems))) {
    EXPECT_EQ(y, x()[last]);
  }
  const auto sums = run(spec_of("reduce", root, kElems, kElems));
  for (size_t rank = 0; rank < sums.size(); ++rank) {
    for (size_t i = 0; i < static_cast<size_t>(kElems); ++i) {
      float sum = 0;
      for (const auto& values : x()) {
        sum += values[i];
      }
      ASSERT_EQ(sums[rank][i], rank == last ? sum : 0.0f);
    }
  }
  for (const int64_t shift : {int64_t{1}, int64_t{-1}, n + 1, n}) {
    const auto shifted =
        run(spec_of("ring_shift", to_attributes(RingShiftAttributes{.group = 0, .shift = shift}),
                    kElems, kElems));
    for (size_t rank = 0; rank < shifted.size(); ++rank) {
      const auto from = ((static_cast<int64_t>(rank) - shift) % n + n) % n;
      EXPECT_EQ(shifted[rank], x()[static_cast<size_t>(from)]) << shift;
    }
  }
}

}  // namespace
}  // namespace braid
