// How long a step program of a given size takes to build, to give events, to verify and to plan.
//   braid_bench_program [tasks...]       default: 10000 100000 1000000

#include <fmt/core.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "ir/program.h"
#include "ir/verify.h"
#include "memory/memory_plan.h"
#include "passes/streams/insert_events.h"

namespace braid {
namespace {

constexpr int64_t kLayers = 16;
constexpr int64_t kTokens = 512;
constexpr int64_t kWidth = 256;

/// A training step of one rank of 8: 16 layers, as many microbatches as it takes, every activation
/// a buffer of its own. Tasks have five operands; tensor-parallel all-reduces run on one
/// communication stream, gradient all-reduces on another.
class StepWriter {
 public:
  StepWriter() : builder_("bench", 0, 8) {
    compute_ = builder_.add_stream({"compute", StreamKind::kCompute, 0});
    tensor_ = builder_.add_stream({"comm.tensor", StreamKind::kComm, 1});
    data_ = builder_.add_stream({"comm.data", StreamKind::kComm, 1});
    builder_.add_group({"tp", GroupKind::kTensor, {0, 1}});
    builder_.add_group({"dp", GroupKind::kData, {0, 2, 4, 6}});
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      weights_.push_back(add_buffer(fmt::format("layers.{}.weight", layer), BufferRole::kParam));
      grads_.push_back(add_buffer(fmt::format("layers.{}.grad", layer), BufferRole::kMainGrad));
    }
    hidden_ = add_buffer("embedding", BufferRole::kActivation);
  }

  Program write(size_t num_tasks) {
    const size_t margin = 1000;  // the last microbatch may not fit
    builder_.reserve(num_tasks + margin, 5 * (num_tasks + margin), 2 * (num_tasks + margin));
    for (int32_t microbatch = 0; builder_.program().tasks.size() < num_tasks; ++microbatch) {
      label_.microbatch = microbatch;
      forward();
      backward();
    }
    label_.microbatch = -1;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      reduce_and_update(layer);
    }
    return builder_.take();
  }

 private:
  BufferId add_buffer(std::string name, BufferRole role) {
    const Lifetime lifetime =
        role == BufferRole::kActivation ? Lifetime::kStep : Lifetime::kPersistent;
    return builder_.add_buffer(
        {std::move(name), DType::kBF16, {kTokens, kWidth}, role, lifetime, Placement::kDevice});
  }

  /// A task with three reads and two writes; returns the first of the two new activations.
  BufferId emit(std::string op, Phase phase, BufferId a, BufferId b, BufferId c) {
    const BufferId first = activation();
    label_.phase = phase;
    add(std::move(op), {},
        {{{a, Access::kRead},
          {b, Access::kRead},
          {c, Access::kRead},
          {first, Access::kWrite},
          {activation(), Access::kWrite}}},
        compute_);
    return first;
  }

  BufferId activation() {
    return add_buffer(fmt::format("mb{}.layers.{}.{}", label_.microbatch, label_.layer, num_++),
                      BufferRole::kActivation);
  }

  void all_reduce(BufferId buffer, int64_t group, StreamId stream) {
    label_.phase = Phase::kComm;
    add("all_reduce", {{"group", group}}, {{{buffer, Access::kReadWrite}}}, stream);
  }

  void add(std::string op, std::vector<Attribute> attributes,
           const std::vector<std::pair<BufferId, Access>>& uses, StreamId stream) {
    spec_.op = std::move(op);
    spec_.attributes = std::move(attributes);
    spec_.operands.clear();
    operands_.clear();
    for (const auto& [buffer, access] : uses) {
      spec_.operands.push_back({DType::kBF16, access, {kTokens, kWidth}});
      operands_.push_back(builder_.whole(buffer));
    }
    builder_.add_task(spec_, operands_, stream, label_);
  }

  void forward() {
    saved_.clear();
    BufferId hidden = hidden_;
    if (label_.microbatch == 0) {
      add("fill", {{"value", 0.0}}, {{{hidden, Access::kWrite}}}, compute_);
    }
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      label_.layer = layer;
      const BufferId weight = weights_[static_cast<size_t>(layer)];
      for (const char* op : {"norm", "linear", "rope", "attention", "linear", "swiglu", "linear"}) {
        saved_.push_back(hidden);
        hidden = emit(op, Phase::kForward, hidden, weight, saved_.back());
      }
      all_reduce(hidden, 0, tensor_);
    }
    last_ = hidden;
  }

  void backward() {
    BufferId grad = last_;
    for (int32_t layer = kLayers; layer-- > 0;) {
      label_.layer = layer;
      for (int i = 0; i < 7; ++i) {
        const BufferId saved = saved_.back();
        saved_.pop_back();
        const BufferId next =
            emit("dgrad", Phase::kDgrad, grad, weights_[static_cast<size_t>(layer)], saved);
        label_.phase = Phase::kWgrad;
        add("wgrad", {{"accumulate", true}},
            {{{grad, Access::kRead},
              {saved, Access::kRead},
              {next, Access::kRead},
              {weights_[static_cast<size_t>(layer)], Access::kRead},
              {grads_[static_cast<size_t>(layer)], Access::kReadWrite}}},
            compute_);
        grad = next;
      }
      all_reduce(grad, 0, tensor_);
    }
  }

  void reduce_and_update(int32_t layer) {
    label_.layer = layer;
    all_reduce(grads_[static_cast<size_t>(layer)], 1, data_);
    label_.phase = Phase::kOptimizer;
    add("adamw", {{"epsilon", 1e-8}},
        {{{grads_[static_cast<size_t>(layer)], Access::kRead},
          {weights_[static_cast<size_t>(layer)], Access::kReadWrite}}},
        compute_);
  }

  ProgramBuilder builder_;
  StreamId compute_, tensor_, data_;
  std::vector<BufferId> weights_;
  std::vector<BufferId> grads_;
  std::vector<BufferId> saved_;
  BufferId hidden_;
  BufferId last_;
  Label label_;
  OpSpec spec_;
  std::vector<BufferRange> operands_;
  int64_t num_ = 0;
};

template <class Call>
double seconds(Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void bench(size_t num_tasks) {
  Program program;
  size_t num_violations = 0;
  MemoryPlan plan;
  const double build_s = seconds([&] { program = StepWriter().write(num_tasks); });
  const double events_s = seconds([&] { program = insert_events(std::move(program)).program; });
  const double verify_s = seconds([&] { num_violations = verify(program).size(); });
  const double plan_s =
      seconds([&] { plan = plan_memory(std::array<const Program*, 1>{&program}); });
  fmt::print("{:>9} {:>9} {:>8.2f} {:>8.2f} {:>8.2f} {:>8.2f} {:>8.2f} {:>10}\n",
             program.tasks.size(), program.buffers.size(), build_s, events_s, verify_s, plan_s,
             build_s + events_s + verify_s + plan_s, num_violations);
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  std::vector<size_t> sizes;
  for (int i = 1; i < argc; ++i) {
    sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  }
  if (sizes.empty()) {
    sizes = {10'000, 100'000, 1'000'000};
  }
  fmt::print("{:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10}\n", "tasks", "buffers", "build s",
             "events s", "verify s", "memory s", "total s", "violations");
  for (const size_t size : sizes) {
    braid::bench(size);
  }
}
