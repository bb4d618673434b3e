// Two ranks, each a thread with a GPU and an executor of its own: what one that fails does to the
// other, and two executors of a rank that share a rendezvous.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "backends/cuda/comm/communicators.h"
#include "backends/run_ranks.h"
#include "base/errors.h"
#include "ir/text.h"
#include "passes/streams/comm_engine.h"
#include "support/cuda_executors.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::Not;

constexpr int kRanks = 2;
constexpr int kGoodSteps = 5;
constexpr int64_t kElems = 1000;
constexpr std::chrono::seconds kSoon{30};

/// y is x of both ranks.
Program program_of(int rank, CommEngine engine) {
  const Program program =
      parse_program(fmt::format("program step rank={} ranks=2 events=0\n"
                                "stream comm kind=comm priority=1\n"
                                "group pair kind=data ranks=0,1\n"
                                "buffer x f32 [{}] activation persistent device\n"
                                "buffer a f32 [{}] activation step device\n"
                                "buffer y f32 [{}] activation persistent device\n"
                                "copy(x -> a) comm comm\n"
                                "all_gather(a -> y) {{group=0}} comm comm\n",
                                rank, kElems, kElems, 2 * kElems));
  return comm_engine(program, {.engine = engine}, {}).program;
}

/// A rank with a device of its own.
struct RankOnDevice {
  CudaContext context;
  std::unique_ptr<CudaExecutor> executor;

  RankOnDevice(int rank, CommEngine engine, CudaExecutorOptions options) : context(rank, "") {
    std::vector<Program> programs{program_of(rank, engine)};
    MemoryPlan plan = memory_of(programs);
    executor = std::make_unique<CudaExecutor>(std::move(programs), std::move(plan), context,
                                              std::move(options));
  }

  /// y after a step with this x.
  std::vector<float> run(float value) {
    const std::vector<float> x(kElems, value);
    executor->write("x", 0, std::as_bytes(std::span(x)));
    executor->run(0);
    std::vector<float> y(2 * kElems);
    executor->read("y", 0, std::as_writable_bytes(std::span(y)));
    return y;
  }
};

std::string why_not_here(CommEngine engine) {
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus < kRanks) {
    return "needs 2 GPUs";
  }
  if (engine == CommEngine::kCopy) {
    return "";
  }
  const std::string why = why_no_nccl();
  return why.empty() && engine == CommEngine::kNcclCopy ? why_no_nccl_windows() : why;
}

/// What becomes of rank 1 after some good steps.
enum class Fault {
  kThrows,  ///< a task of it cannot be enqueued
  kAborts,  ///< its host says so, and launches no more, in graphs
  kSilent,  ///< launches no more, and says nothing
};

struct FailureCase {
  const char* name;
  CommEngine engine;
  Fault fault;
  int in_flight = 1;  ///< steps that rank 0 has launched when rank 1 fails
};

void PrintTo(const FailureCase& failure, std::ostream* out) {
  *out << failure.name;
}

CudaExecutorOptions options_of(const FailureCase& failure, int rank, Rendezvous& meeting) {
  CudaExecutorOptions options{.rendezvous = &meeting, .timeout_ns = 2'000'000'000};
  if (failure.fault == Fault::kThrows) {
    options.mode = CudaStepMode::kEager;
    const auto num_steps = std::make_shared<int>(0);
    options.make_kernel = hooked_cuda_kernels([rank, num_steps](const OpSpec& spec) {
      if (rank == 1 && spec.op == "copy" && ++*num_steps > kGoodSteps) {
        throw std::runtime_error("broken on purpose");
      }
    });
  }
  return options;
}

/// Steps until one fails; what it says.
std::string run_rank(const FailureCase& failure, int rank, RankOnDevice& on_device,
                     Rendezvous& meeting) {
  try {
    for (int step = 0;; ++step) {
      if (rank == 1 && step == kGoodSteps && failure.fault == Fault::kAborts) {
        meeting.abort("rank 1 has met an error");
      }
      if (rank == 1 && step == kGoodSteps && failure.fault != Fault::kThrows) {
        while (!meeting.aborted()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return meeting.aborted().value_or("");
      }
      if (step == kGoodSteps && failure.in_flight > 1) {
        for (int launched = 0; launched < failure.in_flight; ++launched) {
          on_device.executor->launch(0);
        }
        on_device.executor->wait();
      }
      for (const float value : on_device.run(static_cast<float>(step))) {
        if (value != static_cast<float>(step)) {
          return fmt::format("wrong bits in step {}", step);
        }
      }
    }
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// Prints what the ranks say; status 0 if all end in time. What NCCL's copies wait for never comes,
/// so those threads are left behind.
[[noreturn]] void fail_in_this_process(const FailureCase& failure) {
  const auto meeting = make_in_process_rendezvous(kRanks, 60'000'000'000);
  std::array<std::promise<std::string>, kRanks> said;
  std::array<std::promise<void>, kRanks> ended;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<size_t>(rank);
      try {
        auto on_device = std::make_unique<RankOnDevice>(rank, failure.engine,
                                                        options_of(failure, rank, *meeting[at]));
        said[at].set_value(run_rank(failure, rank, *on_device, *meeting[at]));
        on_device.reset();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d cannot begin: %s\n", rank, error.what());
        std::_Exit(2);
      }
      ended[at].set_value();
    });
  }
  const auto until = std::chrono::steady_clock::now() + kSoon;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    auto words = said[rank].get_future();
    if (words.wait_until(until) != std::future_status::ready) {
      std::fprintf(stderr, "rank %zu hangs\n", rank);
      std::_Exit(3);
    }
    std::fprintf(stderr, "rank %zu said: %s\n", rank, words.get().c_str());
  }
  for (size_t rank = 0; rank < kRanks && failure.engine != CommEngine::kNcclCopy; ++rank) {
    if (ended[rank].get_future().wait_until(until) != std::future_status::ready) {
      std::fprintf(stderr, "rank %zu does not end\n", rank);
      std::_Exit(4);
    }
  }
  std::_Exit(0);
}

class RankFailure : public ::testing::TestWithParam<FailureCase> {};

// In a process of its own, with what may be left of it on the devices.
TEST_P(RankFailure, EndsTheOtherRankSoonWithTheReason) {
  if (const std::string reason = why_not_here(GetParam().engine); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const char* const expected =
      GetParam().fault == Fault::kThrows
          ? "rank 0 said: rank 0, step 5 of program step, stream comm, task 1 .all_gather.: in "
            "group "
            "pair: rank 1, stream comm, task 0 .copy.*broken on purpose"
      : GetParam().fault == Fault::kAborts
          ? "rank 0 said: rank 0, step 5 of program step, stream comm, task 1 .all_gather.: in "
            "group "
            "pair: rank 1 has met an error"
          : "rank 0 said: rank 0, step 5 of program step, stream comm, task 1 .all_gather.: waits "
            "with all_gather of 2000 f32 .all_gather. in group pair, call 1, for rank 1; rank 1: "
            "in "
            "step 4, last call all_gather .*, call 1, finished; the step has not ended after ";
  EXPECT_EXIT(fail_in_this_process(GetParam()), ::testing::ExitedWithCode(0), expected);
}

INSTANTIATE_TEST_SUITE_P(
    , RankFailure,
    ::testing::Values(FailureCase{"sm_throws", CommEngine::kSm, Fault::kThrows},
                      FailureCase{"sm_aborts", CommEngine::kSm, Fault::kAborts},
                      FailureCase{"sm_silent", CommEngine::kSm, Fault::kSilent},
                      FailureCase{"copy_throws", CommEngine::kCopy, Fault::kThrows},
                      FailureCase{"copy_aborts", CommEngine::kCopy, Fault::kAborts},
                      FailureCase{"copy_aborts_two_steps", CommEngine::kCopy, Fault::kAborts, 2},
                      FailureCase{"copy_silent", CommEngine::kCopy, Fault::kSilent},
                      FailureCase{"nccl_copy_throws", CommEngine::kNcclCopy, Fault::kThrows},
                      FailureCase{"nccl_copy_aborts", CommEngine::kNcclCopy, Fault::kAborts}),
    [](const auto& failure) { return std::string(failure.param.name); });

/// Notes under which keys ranks leave something.
class NotingRendezvous final : public Rendezvous {
 public:
  explicit NotingRendezvous(Rendezvous& whole) : whole_(whole) {}
  void put(std::string_view key, std::string value) override {
    keys_.emplace_back(key);
    whole_.put(key, std::move(value));
  }
  std::string get(std::string_view key) override { return whole_.get(key); }
  void abort(const std::string& reason) override { whole_.abort(reason); }
  std::optional<std::string> aborted() const override { return whole_.aborted(); }
  void set_answer(std::string_view question, std::function<std::string()> answer) override {
    whole_.set_answer(question, std::move(answer));
  }
  std::map<int, std::string> ask_others(std::string_view question,
                                        std::chrono::nanoseconds patience) override {
    return whole_.ask_others(question, patience);
  }

  const std::vector<std::string>& keys() const { return keys_; }

 private:
  Rendezvous& whole_;
  std::vector<std::string> keys_;
};

// The first member of each communicator leaves its id for the others.
TEST(CudaExecutorByCopies, MakesNoCommunicator) {
  if (const std::string reason = why_not_here(CommEngine::kCopy); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  for (const CommEngine engine : {CommEngine::kCopy, CommEngine::kSm}) {
    if (!why_not_here(engine).empty()) {
      continue;
    }
    const auto meeting = make_in_process_rendezvous(kRanks, 60'000'000'000);
    NotingRendezvous first(*meeting[0]);
    run_side_by_side(kRanks, [&](size_t rank) {
      RankOnDevice on_device(static_cast<int>(rank), engine,
                             {.rendezvous = rank == 0 ? &first : meeting[rank].get()});
      EXPECT_THAT(on_device.run(3.0f), Each(3.0f));
    });
    const auto of_communicator = ::testing::HasSubstr("communicator");
    if (engine == CommEngine::kCopy) {
      EXPECT_THAT(first.keys(), Not(Contains(of_communicator)));
      EXPECT_THAT(first.keys(), Contains(::testing::HasSubstr("operands of rank 0")));
    } else {
      EXPECT_THAT(first.keys(), Contains(of_communicator));
    }
  }
}

// Their communicators and memory do not meet.
TEST(CudaExecutorsOfOneRendezvous, RunBesideEachOther) {
  if (const std::string reason = why_not_here(CommEngine::kSm); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const auto meeting = make_in_process_rendezvous(kRanks, 60'000'000'000);
  run_side_by_side(kRanks, [&](size_t rank) {
    const auto make = [&](CommEngine engine) {
      return std::make_unique<RankOnDevice>(static_cast<int>(rank), engine,
                                            CudaExecutorOptions{.rendezvous = meeting[rank].get()});
    };
    const auto by_kernels = make(CommEngine::kSm);
    const auto by_copies = make(CommEngine::kCopy);
    for (int step = 0; step < 20; ++step) {
      const auto value = static_cast<float>(step);
      EXPECT_THAT(by_kernels->run(value), Each(value));
      EXPECT_THAT(by_copies->run(-value), Each(-value));
    }
  });
}

}  // namespace
}  // namespace braid
