// Exchanges of rows of experts between GPUs of one host: the time of the kernel, and what it moves.
//
//   braid_bench_row_exchange [--blocks 8,16,32,64,132] [--rows 65536] [--width 2048]
//                            [--experts 128] [--skew 0]
//
// One line of JSON per op and number of blocks. Ranks are threads, each with a GPU; rows are random
// bf16, as many to each expert, or with a skew of s in proportion to 1 / (1 + e)^s for expert e. A
// figure is the median over launches of the slowest rank, which begin together; flags are left out.
//   us            one call
//   gb_per_s      bytes that the rank with the most gets from other GPUs
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "backends/cuda/comm/row_exchange.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/kernels/random_fill.h"
#include "base/errors.h"

namespace braid {
namespace {

constexpr int kLaunches = 30;
constexpr int kWarmUp = 5;

struct Arguments {
  std::vector<int64_t> blocks = {8, 16, 32, 64, 132};
  int64_t rows = 65536;
  int64_t width = 2048;
  int64_t experts = 128;
  double skew = 0;
};

std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> list;
  for (size_t at = 0; at < text.size();) {
    size_t used = 0;
    list.push_back(std::stoll(text.substr(at), &used));
    at += used + 1;
  }
  return list;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--blocks") {
      arguments.blocks = numbers(value);
    } else if (name == "--rows") {
      arguments.rows = std::stoll(value);
    } else if (name == "--width") {
      arguments.width = std::stoll(value);
    } else if (name == "--experts") {
      arguments.experts = std::stoll(value);
    } else if (name == "--skew") {
      arguments.skew = std::stod(value);
    } else {
      throw_config_error("{}: one of --blocks, --rows, --width, --experts, --skew", name);
    }
  }
  return arguments;
}

/// Offsets of one rank's rows.
std::vector<int32_t> offsets_of(const Arguments& a) {
  double sum = 0;
  for (int64_t e = 0; e < a.experts; ++e) {
    sum += std::pow(1.0 + static_cast<double>(e), -a.skew);
  }
  std::vector<int32_t> offsets{0};
  double end = 0;
  for (int64_t e = 0; e < a.experts; ++e) {
    end += std::pow(1.0 + static_cast<double>(e), -a.skew) / sum;
    offsets.push_back(static_cast<int32_t>(std::llround(end * static_cast<double>(a.rows))));
  }
  return offsets;
}

struct Rank {
  DeviceArena owned;
  DeviceArena held;
  DeviceArena offsets_of_all;
};

class Bench {
 public:
  Bench(const Arguments& arguments, int num_gpus)
      : a_(arguments), n_(num_gpus), ranks_(static_cast<size_t>(num_gpus)), all_(num_gpus) {
    group_.name = "experts";
    const std::vector<int32_t> own = offsets_of(a_);
    std::vector<int32_t> all;
    for (int rank = 0; rank < n_; ++rank) {
      group_.ranks.push_back(rank);
      all.insert(all.end(), own.begin(), own.end());
    }
    const int64_t local = a_.experts / n_;
    for (int64_t holder = 0; holder < n_; ++holder) {
      const auto begin = own[static_cast<size_t>(holder * local)];
      room_ =
          std::max<int64_t>(room_, n_ * (own[static_cast<size_t>((holder + 1) * local)] - begin));
      sent_[holder] = own[static_cast<size_t>((holder + 1) * local)] - begin;
    }
    for (int rank = 0; rank < n_; ++rank) {
      prepare(rank, all);
    }
  }

  void run() {
    for (const CommOp op : {CommOp::kDispatchRows, CommOp::kCombineRows}) {
      for (const int64_t blocks : a_.blocks) {
        report(op, blocks, slowest(op, static_cast<int>(blocks)));
      }
    }
  }

 private:
  void prepare(int rank, const std::vector<int32_t>& offsets) {
    BRAID_CUDA_CHECK(cudaSetDevice(rank));
    for (int peer = 0; peer < n_; ++peer) {
      if (peer != rank) {
        BRAID_CUDA_CHECK(cudaDeviceEnablePeerAccess(peer, 0));
      }
    }
    Rank& own = ranks_[static_cast<size_t>(rank)];
    own.owned = DeviceArena(a_.rows * a_.width * 2, "owned rows");
    own.held = DeviceArena(room_ * a_.width * 2, "held rows");
    own.offsets_of_all = DeviceArena(static_cast<int64_t>(offsets.size() * 4), "offsets");
    const CudaStream stream(0);
    random_fill(own.owned.data(), a_.rows * a_.width, DType::kBF16, 1, stream);
    random_fill(own.held.data(), room_ * a_.width, DType::kBF16, 2, stream);
    BRAID_CUDA_CHECK(cudaMemcpyAsync(own.offsets_of_all.data(), offsets.data(), offsets.size() * 4,
                                     cudaMemcpyHostToDevice, stream));
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
  }

  CommCall call_of(CommOp op, int rank) {
    Rank& own = ranks_[static_cast<size_t>(rank)];
    const bool dispatches = op == CommOp::kDispatchRows;
    CommCall call{.op = op,
                  .group = &group_,
                  .send = dispatches ? own.owned.data() : own.held.data(),
                  .recv = dispatches ? own.held.data() : own.owned.data(),
                  .send_elems = (dispatches ? a_.rows : room_) * a_.width,
                  .recv_elems = (dispatches ? room_ : a_.rows) * a_.width,
                  .dtype = DType::kBF16,
                  .what = "a benchmark"};
    call.rows = {.experts = a_.experts,
                 .send_rows = dispatches ? a_.rows : room_,
                 .recv_rows = dispatches ? room_ : a_.rows,
                 .offsets_of_all = reinterpret_cast<const int32_t*>(own.offsets_of_all.data())};
    return call;
  }

  /// By launch, the time of the slowest rank.
  std::vector<double> slowest(CommOp op, int blocks) {
    std::vector<std::vector<double>> times(static_cast<size_t>(n_));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < n_; ++rank) {
      threads.emplace_back([&, rank] { time_rank(op, blocks, rank, times); });
    }
    threads.clear();
    std::vector<double> slowest(kLaunches, 0);
    for (size_t i = 0; i < slowest.size(); ++i) {
      for (const auto& of_rank : times) {
        slowest[i] = std::max(slowest[i], of_rank[i]);
      }
    }
    return slowest;
  }

  void time_rank(CommOp op, int blocks, int rank, std::vector<std::vector<double>>& times) {
    BRAID_CUDA_CHECK(cudaSetDevice(rank));
    const CudaStream stream(0);
    const CudaEvent begin(EventTiming::kTimed);
    const CudaEvent end(EventTiming::kTimed);
    RowsOfMembers members;
    for (const Rank& other : ranks_) {
      members.rows.push_back(op == CommOp::kDispatchRows ? other.owned.data() : other.held.data());
    }
    const CommCall call = call_of(op, rank);
    for (int i = 0; i < kWarmUp + kLaunches; ++i) {
      all_.arrive_and_wait();
      BRAID_CUDA_CHECK(cudaEventRecord(begin, stream));
      launch_row_exchange(call, static_cast<size_t>(rank), members, stream, blocks);
      BRAID_CUDA_CHECK(cudaEventRecord(end, stream));
      BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
      float ms = 0;
      BRAID_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
      if (i >= kWarmUp) {
        times[static_cast<size_t>(rank)].push_back(ms * 1e3);
      }
    }
  }

  void report(CommOp op, int64_t blocks, std::vector<double> us) const {
    int64_t most = 0;
    for (int64_t rank = 0; rank < n_; ++rank) {
      const int64_t held = (n_ - 1) * sent_.at(rank);
      most = std::max(most, op == CommOp::kDispatchRows ? held : a_.rows - sent_.at(rank));
    }
    const double bytes = static_cast<double>(most * a_.width * 2);
    std::ranges::sort(us);
    const double median = us[us.size() / 2];
    fmt::print(
        "{{\"op\": \"{}\", \"gpus\": {}, \"blocks\": {}, \"rows\": {}, \"width\": {}, \"experts\": "
        "{}, \"skew\": {}, \"us\": {:.1f}, \"fastest_us\": {:.1f}, \"slowest_us\": {:.1f}, "
        "\"gb_per_s\": {:.1f}}}\n",
        comm_op_name(op), n_, blocks, a_.rows, a_.width, a_.experts, a_.skew, median, us.front(),
        us.back(), bytes / median * 1e-3);
  }

  Arguments a_;
  int n_;
  Group group_;
  std::vector<Rank> ranks_;
  std::barrier<> all_;
  int64_t room_ = 0;
  std::map<int64_t, int64_t> sent_;  // rows of a rank for each holder
};

int run(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  int num_gpus = 0;
  BRAID_CUDA_CHECK(cudaGetDeviceCount(&num_gpus));
  if (num_gpus < 2) {
    fmt::print("needs two GPUs, and there is {}\n", num_gpus);
    return 1;
  }
  Bench(arguments, num_gpus).run();
  return 0;
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  try {
    return braid::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
