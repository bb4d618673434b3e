// Communication between GPUs of one host, by NCCL's kernels and by copy engines, alone and beside
// matrix products: its time, the time it costs the products, and its exposed time.
//
//   braid_bench_comm [--gpus 2,4,8] [--mb 8,32,128,512] [--ops all_gather,...]
//                    [--engines nccl,copy,nccl_windows,nccl_copy] [--product linear] [--eager]
//                    [--marks]
//
// Engines: nccl = its kernels; copy = our copies; nccl_windows = NCCL's kernels over symmetric
// windows, of collectives but ring_shift and all_to_all, which are messages; nccl_copy = NCCL's
// copies over windows (CTA policy zero), of all_gather and all_to_all. Without names: the first
// two. NVLink multicast is off unless NCCL_NVLS_ENABLE says otherwise.
//
// Products: linear or linear_swiglu, with the kernel that is fastest alone. :KERNEL after the name
// chooses one of linear_swiglu.h (linear_swiglu:128x192_pingpong) or one of gemm.h's candidates
// ("linear:sm90 128x192_pingpong_dynamic", or linear:first for cuBLASLt's first suggestion).
//
// Marks: set before and after each task, as in a step of several ranks (mark_words.h). Their cost
// is the difference to a run without them.
//
// One line of JSON per case. Ranks are threads, each with a GPU. Data is random bf16; MB (2^20) is
// the larger operand of the call. A case is a graph of several calls on one stream and of products
// (8192 x 4096 x 4096) on another, of lower priority as in a step; medians of its replays, of the
// slowest rank:
//   alone_us         one call, nothing beside it       bus_gb_per_s  as nccl-tests count
//   gemms_alone_us   all products, nothing beside
//   gemms_beside_us  from the beginning to the end of the last product, with the calls beside
//   comm_beside_us   the same of the last call, per call
//   exposed_us       what all takes longer than the products alone, per call
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backends/cuda/comm/communicators.h"
#include "backends/cuda/comm/peer_calls.h"
#include "backends/cuda/cuda_context.h"
#include "backends/cuda/cuda_error.h"
#include "backends/cuda/cuda_handle.h"
#include "backends/cuda/device_arena.h"
#include "backends/cuda/kernel.h"
#include "backends/cuda/kernels/gemm.h"
#include "backends/cuda/kernels/linear_swiglu.h"
#include "backends/cuda/kernels/random_fill.h"
#include "backends/cuda/mark_words.h"
#include "backends/run_ranks.h"
#include "base/errors.h"
#include "base/text.h"
#include "ir/text.h"
#include "ops/collectives.h"
#include "ops/meets_others.h"
#include "passes/streams/comm_engine.h"

namespace braid {
namespace {

constexpr int kReplays = 9;
constexpr double kLeastReplayUs = 3000;
constexpr int64_t kGemmRows = 8192;
constexpr int64_t kGemmWidth = 4096;
constexpr auto kLongestReplay = std::chrono::seconds(30);

struct Arguments {
  std::vector<int> gpus;
  std::vector<int64_t> mb = {8, 32, 128, 512};
  std::vector<std::string> ops = {"all_gather", "reduce_scatter", "all_reduce",
                                  "all_to_all", "ring_shift",     "send_recv"};
  std::vector<std::string> engines = {"nccl", "copy"};
  std::string product = "linear";
  bool eager = false;
  bool marks = false;
};

struct Case {
  std::string op;
  int64_t bytes = 0;
  std::string engine;
  std::string product;
  bool eager = false;
  bool marks = false;

  bool by_copies() const { return engine == "copy"; }
  bool by_nccl_copies() const { return engine == "nccl_copy"; }
  bool on_windows() const { return engine == "nccl_windows" || by_nccl_copies(); }
};

/// Whether an engine has another way for an op than NCCL's kernels have.
bool has_way(const std::string& engine, const std::string& op) {
  const bool is_message = op == "ring_shift" || op == "send_recv";
  return engine == "nccl_copy"      ? nccl_copies_suffice(op)
         : engine == "nccl_windows" ? !is_message && op != "all_to_all"
                                    : true;
}

/// One call on this rank; none on the last of an odd number of ranks that exchange messages.
Program program_of(const Case& c, int rank, int num_ranks) {
  const int64_t whole = c.bytes / 2 / num_ranks * num_ranks;
  const int64_t part = whole / num_ranks;
  const bool gathers = c.op == "all_gather";
  const bool scatters = c.op == "reduce_scatter";
  std::string ranks = "0";
  for (int other = 1; other < num_ranks; ++other) {
    ranks += "," + std::to_string(other);
  }
  std::string task;
  if (c.op == "send_recv") {
    const int peer = rank % 2 == 0 ? rank + 1 : rank - 1;
    task = peer >= num_ranks ? ""
           : rank % 2 == 0   ? fmt::format("send(x) {{group=0, peer={}, channel=0}}", peer)
                             : fmt::format("recv(-> y) {{group=0, peer={}, channel=0}}", peer);
  } else {
    task = fmt::format("{}(x -> y) {{group=0{}}}", c.op, c.op == "ring_shift" ? ", shift=1" : "");
  }
  Program program = parse_program(fmt::format("program bench rank={} ranks={} events=0\n"
                                              "stream comm kind=comm priority=1\n"
                                              "group all kind=data ranks={}\n"
                                              "buffer x bf16 [{}] activation persistent device\n"
                                              "buffer y bf16 [{}] activation persistent device\n",
                                              rank, num_ranks, ranks, gathers ? part : whole,
                                              scatters ? part : whole) +
                                  (task.empty() ? "" : task + " comm comm\n"));
  const CommEngine engine = c.by_copies()        ? CommEngine::kCopy
                            : c.by_nccl_copies() ? CommEngine::kNcclCopy
                                                 : CommEngine::kSm;
  return comm_engine(std::move(program), {.engine = engine}, {}).program;
}

/// Bytes on the wire per byte of the larger operand, as nccl-tests count.
double bus_part(const std::string& op, int num_ranks) {
  const double others = (num_ranks - 1.0) / num_ranks;
  return op == "all_reduce" ? 2 * others : op == "ring_shift" || op == "send_recv" ? 1.0 : others;
}

/// Products that a step could run; linear_swiglu's writes half as many columns more.
OpSpec product_spec(const std::string& op) {
  const auto operand = [](Access access, int64_t rows, int64_t columns) {
    return OperandSpec{.dtype = DType::kBF16, .access = access, .shape = Shape{rows, columns}};
  };
  OpSpec spec{.op = op,
              .operands = {operand(Access::kRead, kGemmRows, kGemmWidth),
                           operand(Access::kRead, kGemmWidth, kGemmWidth),
                           operand(Access::kWrite, kGemmRows, kGemmWidth)}};
  if (op == "linear") {
    spec.attributes = {{"has_bias", false}, {"adds_bias", true}};
  } else {
    spec.operands.push_back(operand(Access::kWrite, kGemmRows, kGemmWidth / 2));
  }
  return spec;
}

/// By one of make_gemm's candidates, which take the weight in front.
CudaKernel linear_by(const std::string& kernel, CudaContext& context) {
  const std::vector<NamedKernel> candidates = gemm_candidates(
      {.transpose_a = true, .m = kGemmWidth, .n = kGemmRows, .k = kGemmWidth}, context);
  const auto chosen = kernel == "first" ? candidates.begin()
                                        : std::ranges::find(candidates, kernel, &NamedKernel::name);
  if (chosen == candidates.end()) {
    throw_config_error("--product linear:{}: linear:first, or one that this build has", kernel);
  }
  return {.launch =
              [launch = chosen->kernel.launch](const CudaKernelArgs& args) {
                const std::array operands{args.operands[1], args.operands[0], args.operands[2]};
                launch({.operands = operands, .scratch = args.scratch, .stream = args.stream});
              },
          .scratch_bytes = chosen->kernel.scratch_bytes};
}

/// Of `product_spec`, as --product says.
CudaKernel product_kernel(const std::string& product, CudaContext& context) {
  const size_t colon = product.find(':');
  const OpSpec spec = product_spec(product.substr(0, colon));
  if (colon == std::string::npos) {
    return make_cuda_kernel(spec, context);
  }
  const std::string kernel = product.substr(colon + 1);
  return spec.op == "linear" ? linear_by(kernel, context)
                             : make_fused_kernel(spec, kernel, context);
}

DeviceArena random_arena(int64_t bytes, uint32_t seed, cudaStream_t stream,
                         const Allocator& allocator = cuda_allocator()) {
  DeviceArena arena((bytes + 255) / 256 * 256, "operand", allocator);
  random_fill(arena.data(), bytes / 2, DType::kBF16, seed, stream);
  return arena;
}

/// Products of one rank.
struct Gemms {
  CudaKernel kernel;
  std::vector<DeviceArena> operands;
  DeviceArena scratch;

  Gemms(const std::string& product, CudaContext& context, cudaStream_t stream)
      : kernel(product_kernel(product, context)) {
    const OpSpec spec = product_spec(product.substr(0, product.find(':')));
    uint32_t seed = 1;
    for (const OperandSpec& each : spec.operands) {
      operands.push_back(random_arena(each.shape.num_elems() * 2, seed++, stream));
    }
    scratch = DeviceArena(static_cast<int64_t>(kernel.scratch_bytes), "scratch");
  }

  void enqueue(int count, cudaStream_t stream) const {
    std::vector<std::byte*> addresses;
    for (const DeviceArena& each : operands) {
      addresses.push_back(each.data());
    }
    for (int i = 0; i < count; ++i) {
      kernel.launch({.operands = addresses, .scratch = scratch.data(), .stream = stream});
    }
  }
};

/// The calls of one rank.
class Calls {
 public:
  Calls(const Case& c, int rank, int num_ranks, CudaContext& context, Rendezvous& rendezvous,
        cudaStream_t stream)
      : program_(program_of(c, rank, num_ranks)), copies_(rank, {&program_, 1}) {
    int64_t bytes = 0;
    for (const Buffer& buffer : program_.buffers) {
      offsets_.push_back(bytes);
      bytes += (buffer.size_bytes() + 511) / 512 * 512;
    }
    memory_ = random_arena(bytes, static_cast<uint32_t>(100 + rank), stream,
                           c.on_windows() ? nccl_window_allocator() : cuda_allocator());
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream));
    if (!c.by_copies()) {
      communicators_ = std::make_unique<Communicators>(
          std::span(&program_, 1), rendezvous, CommunicatorOptions{.windows = c.on_windows()});
    }
    if (c.on_windows()) {
      register_windows();
    }
    for (size_t i = 0; i < program_.tasks.size(); ++i) {
      const OpSpec& spec = program_.spec(program_.tasks[i]);
      own_.push_back(copies_.kernel(0, TaskId(i)) != nullptr ? CudaKernel()
                     : spec.op == "sum_blocks"
                         ? make_cuda_kernel(spec, context)
                         : communicators_->make_kernel(program_, program_.tasks[i]));
    }
    if (c.by_copies() && num_ranks > 1 && !copies_.empty()) {
      connect(rendezvous);
    }
  }

  /// With marks, unless they are null.
  void enqueue(int count, cudaStream_t stream, const MarkWords* marks) const {
    for (int i = 0; i < count; ++i) {
      for (size_t task = 0; task < program_.tasks.size(); ++task) {
        const CudaKernel* const copy = copies_.kernel(0, TaskId(task));
        const std::vector<std::byte*> operands = operands_of(TaskId(task));
        const MarkWords* const of_task =
            meets_others(program_, program_.tasks[task]) ? marks : nullptr;
        if (of_task != nullptr) {
          of_task->begin_task(0, TaskId(task), stream);
        }
        (copy != nullptr ? *copy : own_[task])
            .launch({.operands = operands, .scratch = nullptr, .stream = stream});
        if (of_task != nullptr) {
          of_task->end_task(0, TaskId(task), stream);
        }
      }
    }
  }

 private:
  std::byte* address(TaskId task, size_t operand) const { return operands_of(task)[operand]; }

  /// The first calls that this makes leave other random numbers.
  void register_windows() {
    communicators_->register_windows(std::span(&program_, 1),
                                     {.memory = {{memory_.data(), memory_.size_bytes()}},
                                      .address = [this](size_t, TaskId task, size_t operand) {
                                        return address(task, operand);
                                      }});
    for (const std::string& why : communicators_->without_windows()) {
      throw_device_error("no windows, {}", why);
    }
  }

  void connect(Rendezvous& rendezvous) {
    copies_.find_peers({}, rendezvous);
    copies_.connect(
        {.memory = {{memory_.data(), memory_.size_bytes()}},
         .address = [this](size_t, TaskId task, size_t operand) { return address(task, operand); },
         .otherwise = [](size_t, TaskId) -> CudaKernel {
           throw_device_error("these GPUs cannot reach each other's memory");
         }},
        rendezvous);
  }

  std::vector<std::byte*> operands_of(TaskId task) const {
    std::vector<std::byte*> operands;
    for (const BufferRange& range : program_.operands_of(program_.tasks[task.index()])) {
      operands.push_back(memory_.data() + offsets_[range.buffer.index()] + range.begin * 2);
    }
    return operands;
  }

  Program program_;
  PeerCalls copies_;
  DeviceArena memory_;
  std::unique_ptr<Communicators> communicators_;  // goes before the memory that it may know
  std::vector<int64_t> offsets_;
  std::vector<CudaKernel> own_;
};

/// What all ranks share.
struct Meeting {
  std::barrier<> barrier;
  std::vector<double> values;

  explicit Meeting(int num_ranks) : barrier(num_ranks), values(static_cast<size_t>(num_ranks)) {}

  double most(int rank, double value) {
    values[static_cast<size_t>(rank)] = value;
    barrier.arrive_and_wait();
    const double found = *std::max_element(values.begin(), values.end());
    barrier.arrive_and_wait();
    return found;
  }
};

/// Microseconds from the beginning of a replay, of the slowest rank; medians.
struct Times {
  double all = 0;
  double calls = 0;
  double gemms = 0;
};

class RankBench {
 public:
  RankBench(const Case& c, int rank, int num_ranks, Rendezvous& rendezvous, Meeting& meeting)
      : case_(c),
        rank_(rank),
        num_ranks_(num_ranks),
        meeting_(meeting),
        context_(rank, ""),
        stream_(0),
        compute_(0),
        comm_(1),
        gemms_(c.product, context_, stream_),
        calls_(c, rank, num_ranks, context_, rendezvous, stream_),
        marks_(1, stream_) {
    BRAID_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  void run() {
    const double first = time(1, 0).all;
    const int num_calls = std::max(1, static_cast<int>(std::ceil(kLeastReplayUs / first)));
    const Times alone = time(num_calls, 0);
    const double gemm = time(0, 8).all / 8;
    // Half as long again, so that all of a call could hide.
    const int num_gemms = std::max(4, static_cast<int>(std::ceil(1.5 * alone.all / gemm)));
    const Times gemms = time(0, num_gemms);
    const Times both = time(num_calls, num_gemms);
    if (rank_ == 0) {
      print(num_calls, num_gemms, alone, gemms, both);
    }
    meeting_.barrier.arrive_and_wait();
  }

 private:
  void print(int num_calls, int num_gemms, const Times& alone, const Times& gemms,
             const Times& both) const {
    const double call_us = alone.all / num_calls;
    const auto bytes = static_cast<double>(case_.bytes);
    fmt::print(
        "{{\"kind\": \"comm\", \"gpus\": {}, \"op\": \"{}\", \"mb\": {}, \"engine\": \"{}\", "
        "\"launch\": \"{}\", \"marks\": {}, \"product\": \"{}\", \"alone_us\": {:.1f}, "
        "\"bus_gb_per_s\": {:.1f}, "
        "\"calls\": {}, "
        "\"gemms\": {}, \"gemms_alone_us\": {:.1f}, \"gemms_beside_us\": {:.1f}, "
        "\"gemm_rate\": {:.3f}, \"comm_beside_us\": {:.1f}, \"exposed_us\": {:.1f}}}\n",
        num_ranks_, case_.op, case_.bytes >> 20, case_.engine, case_.eager ? "eager" : "graph",
        case_.marks, case_.product, call_us,
        bytes * bus_part(case_.op, num_ranks_) / call_us * 1e-3, num_calls, num_gemms, gemms.all,
        both.gemms, gemms.all / both.gemms, both.calls / num_calls,
        (both.all - gemms.all) / num_calls);
    std::fflush(stdout);
  }

  void enqueue(int num_calls, int num_gemms, unsigned flags) {
    BRAID_CUDA_CHECK(cudaEventRecordWithFlags(begin_, stream_, flags));
    BRAID_CUDA_CHECK(cudaEventRecord(forked_, stream_));
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(comm_, forked_));
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(compute_, forked_));
    calls_.enqueue(num_calls, comm_, case_.marks ? &marks_ : nullptr);
    gemms_.enqueue(num_gemms, compute_);
    BRAID_CUDA_CHECK(cudaEventRecordWithFlags(calls_end_, comm_, flags));
    BRAID_CUDA_CHECK(cudaEventRecordWithFlags(gemms_end_, compute_, flags));
    BRAID_CUDA_CHECK(cudaEventRecord(comm_joined_, comm_));
    BRAID_CUDA_CHECK(cudaEventRecord(compute_joined_, compute_));
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(stream_, comm_joined_));
    BRAID_CUDA_CHECK(cudaStreamWaitEvent(stream_, compute_joined_));
    BRAID_CUDA_CHECK(cudaEventRecordWithFlags(end_, stream_, flags));
  }

  Times time(int num_calls, int num_gemms) {
    CudaGraphExec graph;
    if (!case_.eager) {
      CudaCapture capturing(stream_);
      enqueue(num_calls, num_gemms, cudaEventRecordExternal);
      graph = CudaGraphExec(capturing.end(), stream_);
    }
    std::vector<Times> replays;
    for (int i = -2; i < kReplays; ++i) {
      meeting_.barrier.arrive_and_wait();
      if (case_.eager) {
        enqueue(num_calls, num_gemms, cudaEventRecordDefault);
      } else {
        BRAID_CUDA_CHECK(cudaGraphLaunch(graph, stream_));
      }
      wait();
      const Times replay{
          .all = most_us(end_), .calls = most_us(calls_end_), .gemms = most_us(gemms_end_)};
      if (i >= 0) {
        replays.push_back(replay);
      }
    }
    return {.all = median(replays, &Times::all),
            .calls = median(replays, &Times::calls),
            .gemms = median(replays, &Times::gemms)};
  }

  double most_us(const CudaEvent& end) {
    float ms = 0;
    BRAID_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end));
    return meeting_.most(rank_, 1e3 * static_cast<double>(ms));
  }

  static double median(std::vector<Times> replays, double Times::*part) {
    std::sort(replays.begin(), replays.end(),
              [part](const Times& a, const Times& b) { return a.*part < b.*part; });
    return replays[replays.size() / 2].*part;
  }

  /// A rank that hangs would hold up all others for ever.
  void wait() {
    const auto until = std::chrono::steady_clock::now() + kLongestReplay;
    while (cudaStreamQuery(stream_) == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() > until) {
        fmt::print(stderr, "braid_bench_comm: rank {} of {} hangs in {} of {} MB by {}\n", rank_,
                   num_ranks_, case_.op, case_.bytes >> 20, case_.engine);
        std::_Exit(1);
      }
    }
    BRAID_CUDA_CHECK(cudaStreamQuery(stream_));
  }

  const Case& case_;
  int rank_;
  int num_ranks_;
  Meeting& meeting_;
  CudaContext context_;
  CudaStream stream_;
  CudaStream compute_;
  CudaStream comm_;
  CudaEvent begin_{EventTiming::kTimed};
  CudaEvent end_{EventTiming::kTimed};
  CudaEvent calls_end_{EventTiming::kTimed};
  CudaEvent gemms_end_{EventTiming::kTimed};
  CudaEvent forked_{EventTiming::kNone};
  CudaEvent comm_joined_{EventTiming::kNone};
  CudaEvent compute_joined_{EventTiming::kNone};
  Gemms gemms_;
  Calls calls_;
  MarkWords marks_;  // of the stream of the calls
};

void run_case(const Case& c, int num_ranks) {
  Meeting meeting(num_ranks);
  const auto rendezvous = make_in_process_rendezvous(num_ranks, 60'000'000'000);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        BRAID_CUDA_CHECK(cudaSetDevice(rank));
        RankBench(c, rank, num_ranks, *rendezvous[static_cast<size_t>(rank)], meeting).run();
      } catch (const std::exception& error) {
        fmt::print(stderr, "braid_bench_comm: rank {} of {}, {} of {} MB by {}: {}\n", rank,
                   num_ranks, c.op, c.bytes >> 20, c.engine, error.what());
        std::_Exit(1);  // the others wait at a barrier
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    words.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

Arguments parse_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--eager" || option == "--marks") {
      (option == "--eager" ? arguments.eager : arguments.marks) = true;
      continue;
    }
    if (i + 1 == argc) {
      throw_config_error("{} needs a value", option);
    }
    const std::vector<std::string> words = words_of(argv[++i]);
    if (option == "--gpus") {
      for (const std::string& word : words) {
        arguments.gpus.push_back(std::stoi(word));
      }
    } else if (option == "--mb") {
      arguments.mb.clear();
      for (const std::string& word : words) {
        arguments.mb.push_back(std::stoll(word));
      }
    } else if (option == "--ops") {
      arguments.ops = words;
    } else if (option == "--engines") {
      constexpr std::array<std::string_view, 4> kEngines = {"nccl", "copy", "nccl_windows",
                                                            "nccl_copy"};
      for (const std::string& word : words) {
        if (std::ranges::find(kEngines, word) == kEngines.end()) {
          throw_config_error("--engines {}: one of nccl, copy, nccl_windows, nccl_copy", word);
        }
      }
      arguments.engines = words;
    } else if (option == "--product") {
      arguments.product = argv[i];
      const std::string op = arguments.product.substr(0, arguments.product.find(':'));
      if (op != "linear" && op != "linear_swiglu") {
        throw_config_error("--product {}: linear or linear_swiglu, with or without :KERNEL",
                           arguments.product);
      }
    } else {
      throw_config_error("unknown argument {}", option);
    }
  }
  return arguments;
}

void run(Arguments arguments) {
  int num_gpus = 0;
  BRAID_CUDA_CHECK(cudaGetDeviceCount(&num_gpus));
  if (arguments.gpus.empty()) {
    for (int gpus = 2; gpus <= num_gpus; gpus *= 2) {
      arguments.gpus.push_back(gpus);
    }
  }
  if (arguments.gpus.empty()) {
    throw_config_error("one GPU communicates with nobody; run this where there are several");
  }
  for (const int gpus : arguments.gpus) {
    if (gpus < 2 || gpus > num_gpus) {
      throw_config_error("--gpus {}: between 2 and the {} of this machine", gpus, num_gpus);
    }
    for (const std::string& op : arguments.ops) {
      for (const int64_t mb : arguments.mb) {
        for (const std::string& engine : arguments.engines) {
          if (has_way(engine, op)) {
            run_case({.op = op,
                      .bytes = mb << 20,
                      .engine = engine,
                      .product = arguments.product,
                      .eager = arguments.eager,
                      .marks = arguments.marks},
                     gpus);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  constexpr int kKeep = 0;
  setenv("NCCL_NVLS_ENABLE", "0", kKeep);  // before NCCL reads it
  try {
    braid::run(braid::parse_arguments(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "braid_bench_comm: {}\n", error.what());
    return 1;
  }
}
