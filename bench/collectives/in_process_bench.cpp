// Collectives and messages between ranks that are threads of this process. Each thread of a
// benchmark is a rank; all run the same calls. `call` is the time of one; the library's own column
// divides it by the number of threads. `bytes` are those of the larger operand, per second.
#include <benchmark/benchmark.h>

#include <memory>
#include <numeric>
#include <vector>

#include "comm/transport.h"

namespace braid {
namespace {

/// What the ranks of one benchmark share; made before its threads start.
struct Ranks {
  std::vector<std::unique_ptr<Transport>> transports;
  Group group{"all", GroupKind::kData, {}};
};

Ranks& ranks() {
  static Ranks shared;
  return shared;
}

void set_up(const benchmark::State& state) {
  const int num_ranks = state.threads();
  ranks().transports = make_in_process_transports({.num_ranks = num_ranks});
  ranks().group.ranks.resize(static_cast<size_t>(num_ranks));
  std::iota(ranks().group.ranks.begin(), ranks().group.ranks.end(), 0);
}

void tear_down(const benchmark::State& /*state*/) {
  ranks().transports.clear();
}

/// The call of one rank, whose larger operand has that many bytes.
CommCall make_call(CommOp op, int rank, int64_t num_bytes, std::vector<float>& x,
                   std::vector<float>& y) {
  const auto n = static_cast<int64_t>(ranks().group.ranks.size());
  const int64_t whole = num_bytes / static_cast<int64_t>(sizeof(float)) / n * n;
  CommCall call{.op = op, .group = &ranks().group, .shift = 1, .what = "bench"};
  call.send_elems = op == CommOp::kAllGather ? whole / n : whole;
  call.recv_elems = op == CommOp::kReduceScatter ? whole / n : whole;
  if (call.is_message()) {
    call.op = rank % 2 == 0 ? CommOp::kSend : CommOp::kRecv;
    call.peer = rank % 2 == 0 ? rank + 1 : rank - 1;
    (call.op == CommOp::kSend ? call.recv_elems : call.send_elems) = 0;
  }
  x.assign(static_cast<size_t>(call.send_elems), 1.0f);
  y.assign(static_cast<size_t>(call.recv_elems), 0.0f);
  call.send = reinterpret_cast<const std::byte*>(x.data());
  call.recv = reinterpret_cast<std::byte*>(y.data());
  return call;
}

void run_calls(benchmark::State& state, CommOp op) {
  std::vector<float> x;
  std::vector<float> y;
  const CommCall call = make_call(op, state.thread_index(), state.range(0), x, y);
  Transport& transport = *ranks().transports[static_cast<size_t>(state.thread_index())];
  for (auto _ : state) {
    transport.run(call);
  }
  if (state.thread_index() == 0) {
    using benchmark::Counter;
    const auto calls = static_cast<double>(state.iterations());
    state.counters["call"] = Counter(calls, Counter::kIsRate | Counter::kInvert);
    state.counters["bytes"] =
        Counter(static_cast<double>(call.num_bytes()) * calls, Counter::kIsRate);
  }
}

void add(const char* name, CommOp op) {
  auto* const bench =
      benchmark::RegisterBenchmark(name, [op](benchmark::State& state) { run_calls(state, op); });
  bench->Arg(4 << 10)->Arg(1 << 20)->Arg(16 << 20)->ArgName("bytes");
  bench->Threads(2)->Threads(4)->Threads(8)->Setup(set_up)->Teardown(tear_down);
  bench->UseRealTime()->Unit(benchmark::kMicrosecond);
}

const bool kAdded = [] {
  add("all_reduce", CommOp::kAllReduce);
  add("all_gather", CommOp::kAllGather);
  add("reduce_scatter", CommOp::kReduceScatter);
  add("all_to_all", CommOp::kAllToAll);
  add("ring_shift", CommOp::kRingShift);
  add("send_recv", CommOp::kSend);
  return true;
}();

}  // namespace
}  // namespace braid
