#include "calibrate/task_timer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "base/errors.h"
#include "ops/attributes.h"
#include "ops/elementwise.h"
#include "ops/op.h"

namespace braid {
namespace {

constexpr size_t kBatch = 12;  ///< specs that share an executor, since making one takes long on a
                               ///< GPU
constexpr int64_t kMaxRepetitions = 512;
constexpr int64_t kMaxSets = 64;
constexpr int64_t kOverheadTasks = 256;
constexpr ptrdiff_t kMinSamples = 3;

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Numbers in [0.05, 1), in 16 bits with both signs, because sums of products of equal sign would
/// look simpler than real data. Second moments and norms, which are positive, have 32 bits and
/// more; of second moments in bf16, half are negative here, and their updates NaN, which take as
/// long.
template <class T>
std::vector<std::byte> random_numbers(int64_t count, bool has_signs) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> magnitude(0.05f, 1.0f);
  std::vector<T> values;
  values.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const float value = magnitude(random);
    values.push_back(static_cast<T>(has_signs && (random() & 1) != 0 ? -value : value));
  }
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> seed_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return random_numbers<BFloat16>(kSeedElems, true);
    case DType::kF32:
      return random_numbers<float>(kSeedElems, false);
    case DType::kF64:
      return random_numbers<double>(kSeedElems, false);
    default:
      return std::vector<std::byte>(static_cast<size_t>(kSeedElems) * dtype_bytes(dtype));
  }
}

/// An executor of timing programs with filled operands.
class TimingExecutor {
 public:
  TimingExecutor(const ExecutorFactory& make_executor, std::span<const RepeatedTask> tasks) {
    std::vector<Program> programs = repeated_task_programs(tasks);
    std::vector<const Program*> pointers;
    std::map<std::string, DType> seeds;
    for (const Program& program : programs) {
      pointers.push_back(&program);
      for (const Buffer& buffer : program.buffers) {
        if (buffer.name.starts_with("seed.")) {
          seeds[buffer.name] = buffer.dtype;
        }
      }
    }
    MemoryPlan plan = plan_memory(pointers);
    executor_ = make_executor(std::move(programs), std::move(plan));
    for (const auto& [name, dtype] : seeds) {
      executor_->write(name, 0, seed_of(dtype));
    }
    executor_->run(kFillRead);
    executor_->run(kFillWritten);
  }

  /// Prepares the inputs of a task: valid integers, and sums that no other task has changed.
  void prepare(const RepeatedTask& task) {
    const std::vector<int32_t> integers = operand_integers(task);
    if (!integers.empty()) {
      executor_->write("read.i32", 0, std::as_bytes(std::span(integers)));
    }
    if (std::ranges::any_of(task.spec.operands, [](const OperandSpec& operand) {
          return operand.access == Access::kReadWrite;
        })) {
      executor_->run(kFillWritten);
    }
  }

  Executor& operator*() { return *executor_; }

 private:
  std::unique_ptr<Executor> executor_;
};

double quantile(const std::vector<double>& sorted, double part) {
  const double at = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

}  // namespace

Timing summarize(std::vector<double> samples_ns) {
  check(!samples_ns.empty(), "nothing was timed");
  std::sort(samples_ns.begin(), samples_ns.end());
  const double median = std::max(1.0, quantile(samples_ns, 0.5));
  const double spread = (quantile(samples_ns, 0.75) - quantile(samples_ns, 0.25)) / median;
  return {.ns = std::llround(median), .spread = std::round(spread * 1e4) / 1e4};
}

TaskTimer::TaskTimer(TaskTimerOptions options) : options_(std::move(options)) {
  if (!options_.now_ns) {
    options_.now_ns = steady_ns;
  }
}

/// Nanoseconds of `launches` back-to-back launches.
double TaskTimer::run_many(Executor& executor, size_t program, int64_t launches) const {
  const int64_t begin = options_.now_ns();
  for (int64_t i = 0; i < launches; ++i) {
    executor.run(program);
  }
  return static_cast<double>(options_.now_ns() - begin);
}

RepeatedTask TaskTimer::repeat(const OpSpec& spec, double guess_ns) const {
  const int64_t set_bytes = std::max<int64_t>(operand_set_bytes(spec), 1);
  const int64_t wanted = (options_.rotation_bytes + set_bytes - 1) / set_bytes;
  const int64_t possible = std::max<int64_t>(1, options_.max_bytes / set_bytes);
  const int64_t num_sets = std::clamp<int64_t>(wanted, 1, std::min(possible, kMaxSets));
  const auto fitting =
      static_cast<int64_t>(static_cast<double>(options_.program_ns) / std::max(guess_ns, 1.0));
  const int64_t rounds = std::clamp<int64_t>(fitting, 1, kMaxRepetitions) / num_sets;
  return {
      .spec = spec, .num_sets = num_sets, .repetitions = std::max<int64_t>(1, rounds) * num_sets};
}

Timing TaskTimer::time_program(Executor& executor, size_t program, int64_t repetitions) const {
  executor.run(program);  // the first run may load and check things that later ones do not
  const auto sample = [&](int64_t launches) {
    const double ns = run_many(executor, program, launches) / static_cast<double>(launches) -
                      static_cast<double>(overheads_.step_ns);
    return std::max(ns, 1.0) / static_cast<double>(repetitions);
  };
  double once_ns = 1;
  for (double spent_ns = 0; spent_ns < static_cast<double>(options_.warm_up_ns);) {
    once_ns = std::max(1.0, run_many(executor, program, 1));
    spent_ns += once_ns;
  }
  const auto launches =
      std::max<int64_t>(1, std::llround(static_cast<double>(options_.sample_ns) / once_ns));
  const int64_t begin_ns = options_.now_ns();
  std::vector<double> samples;
  while (std::ssize(samples) < options_.num_samples &&
         (std::ssize(samples) < kMinSamples || options_.now_ns() - begin_ns < options_.spec_ns)) {
    samples.push_back(sample(launches));
  }
  return summarize(std::move(samples));
}

Overheads TaskTimer::measure_overheads(const OpSpec& spec) {
  const std::array tasks{RepeatedTask{spec, 1, 1}, RepeatedTask{spec, 1, kOverheadTasks}};
  TimingExecutor executor(options_.make_executor, tasks);
  overheads_ = {};
  const auto one = static_cast<double>(time_program(*executor, kNumFillPrograms, 1).ns);
  const auto many = static_cast<double>(time_program(*executor, kNumFillPrograms + 1, 1).ns);
  const double launch = std::max(0.0, (many - one) / (kOverheadTasks - 1));
  overheads_ = {.launch_ns = std::llround(launch),
                .step_ns = std::llround(std::max(0.0, one - launch))};
  return overheads_;
}

std::vector<Timing> TaskTimer::time(std::span<const OpSpec> specs, std::span<const double> guess_ns,
                                    const std::function<void()>& done) {
  check(specs.size() == guess_ns.size(), "{} specs, but guesses for {}", specs.size(),
        guess_ns.size());
  std::vector<Timing> timings;
  for (size_t begin = 0; begin < specs.size(); begin += kBatch) {
    std::vector<RepeatedTask> tasks;
    for (size_t i = begin; i < std::min(begin + kBatch, specs.size()); ++i) {
      tasks.push_back(repeat(specs[i], guess_ns[i]));
    }
    TimingExecutor executor(options_.make_executor, tasks);
    for (size_t i = 0; i < tasks.size(); ++i) {
      executor.prepare(tasks[i]);
      timings.push_back(time_program(*executor, kNumFillPrograms + i, tasks[i].repetitions));
      done();
    }
  }
  return timings;
}

HostCopyTimings time_host_copies(const ExecutorFactory& make_executor,
                                 std::span<const int64_t> sizes_bytes, int num_samples) {
  check(!sizes_bytes.empty(), "no sizes to copy");
  const int64_t largest = *std::max_element(sizes_bytes.begin(), sizes_bytes.end());
  const int64_t elems = (largest + 3) / 4;
  const OpSpec spec{std::string(kFillOp.name),
                    to_attributes(FillAttributes{.value = 1.0}),
                    {{DType::kF32, Access::kWrite, {elems}}}};
  TimingExecutor timing(make_executor, std::array{RepeatedTask{spec, 1, 1}});
  Executor& executor = *timing;
  HostBlock block = executor.host_block(largest);
  std::memset(block.bytes.data(), 1, block.bytes.size());
  HostCopyTimings timings;
  for (const int64_t bytes : sizes_bytes) {
    const auto part = block.bytes.first(static_cast<size_t>(bytes));
    std::vector<double> to_device;
    std::vector<double> to_host;
    for (int i = -1; i < num_samples; ++i) {  // the first warms up
      const int64_t begin = steady_ns();
      executor.write("written.f32", 0, part);
      const int64_t middle = steady_ns();
      executor.read("written.f32", 0, part);
      if (i >= 0) {
        to_device.push_back(static_cast<double>(middle - begin));
        to_host.push_back(static_cast<double>(steady_ns() - middle));
      }
    }
    timings.to_device.push_back({.bytes = bytes, .timing = summarize(std::move(to_device))});
    timings.to_host.push_back({.bytes = bytes, .timing = summarize(std::move(to_host))});
  }
  return timings;
}

}  // namespace braid
