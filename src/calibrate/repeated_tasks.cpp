#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

#include "base/errors.h"
#include "calibrate/task_timer.h"
#include "ops/elementwise.h"
#include "ops/integer_values.h"

namespace braid {
namespace {

constexpr int64_t kAlignmentBytes = 256;  // like separate buffers

/// Key of a buffer: its dtype, and whether it is written.
using PoolKey = std::pair<DType, bool>;

int64_t aligned_elems(const OperandSpec& operand) {
  const int64_t step = kAlignmentBytes / static_cast<int64_t>(dtype_bytes(operand.dtype));
  return std::max<int64_t>(1, (operand.shape.num_elems() + step - 1) / step) * step;
}

PoolKey pool_of(const OperandSpec& operand) {
  return {operand.dtype, writes(operand.access)};
}

std::string pool_name(const PoolKey& key) {
  return fmt::format("{}.{}", key.second ? "written" : "read", dtype_name(key.first));
}

/// Elements of each pool in one set of operands.
std::map<PoolKey, int64_t> set_elems(const OpSpec& spec) {
  std::map<PoolKey, int64_t> elems;
  for (const OperandSpec& operand : spec.operands) {
    elems[pool_of(operand)] += aligned_elems(operand);
  }
  return elems;
}

class PoolPrograms {
 public:
  explicit PoolPrograms(std::span<const RepeatedTask> tasks) : tasks_(tasks) {
    for (const RepeatedTask& task : tasks) {
      for (const auto& [key, elems] : set_elems(task.spec)) {
        pool_elems_[key] = std::max(pool_elems_[key], elems * task.num_sets);
      }
    }
  }

  std::vector<Program> build() {
    std::vector<Program> programs;
    programs.push_back(fill_program(
        "fill read", [](const PoolKey& key) { return !key.second && key.first != DType::kI32; }));
    programs.push_back(fill_program("fill written", [](const PoolKey& key) { return key.second; }));
    for (const RepeatedTask& task : tasks_) {
      programs.push_back(task_program(task));
    }
    return programs;
  }

 private:
  static BufferId add_buffer(ProgramBuilder& builder, std::string name, DType dtype,
                             int64_t elems) {
    return builder.add_buffer({.name = std::move(name),
                               .dtype = dtype,
                               .shape = {elems},
                               .role = BufferRole::kIo,
                               .lifetime = Lifetime::kPersistent});
  }

  std::map<PoolKey, BufferId> add_pools(ProgramBuilder& builder) const {
    std::map<PoolKey, BufferId> pools;
    for (const auto& [key, elems] : pool_elems_) {
      pools[key] = add_buffer(builder, pool_name(key), key.first, elems);
    }
    return pools;
  }

  static StreamId add_stream(ProgramBuilder& builder) {
    return builder.add_stream({"compute", StreamKind::kCompute, 0});
  }

  /// Copies the seed to the beginning of a pool, then the existing part to the range after it, and
  /// so on.
  template <class Wanted>
  Program fill_program(std::string name, Wanted&& wanted) const {
    ProgramBuilder builder(std::move(name), 0, 1);
    const StreamId stream = add_stream(builder);
    const std::map<PoolKey, BufferId> pools = add_pools(builder);
    std::map<DType, BufferId> seeds;
    for (const auto& [key, elems] : pool_elems_) {
      if (!wanted(key)) {
        continue;
      }
      if (!seeds.contains(key.first)) {
        seeds[key.first] = add_buffer(builder, fmt::format("seed.{}", dtype_name(key.first)),
                                      key.first, kSeedElems);
      }
      const BufferId pool = pools.at(key);
      int64_t done = std::min(elems, kSeedElems);
      add_copy(builder, stream, {seeds[key.first], 0, done}, {pool, 0, done}, key.first);
      while (done < elems) {
        const int64_t more = std::min(done, elems - done);
        add_copy(builder, stream, {pool, 0, more}, {pool, done, done + more}, key.first);
        done += more;
      }
    }
    return builder.take();
  }

  static void add_copy(ProgramBuilder& builder, StreamId stream, const BufferRange& from,
                       const BufferRange& to, DType dtype) {
    const Shape shape{from.end - from.begin};
    const OpSpec spec{std::string(kCopyOp.name),
                      {},
                      {{dtype, Access::kRead, shape}, {dtype, Access::kWrite, shape}}};
    builder.add_task(spec, std::array{from, to}, stream, {});
  }

  Program task_program(const RepeatedTask& task) const {
    ProgramBuilder builder(fmt::format("time {}", task.spec.op), 0, 1);
    const StreamId stream = add_stream(builder);
    const std::map<PoolKey, BufferId> pools = add_pools(builder);
    const std::map<PoolKey, int64_t> stride = set_elems(task.spec);
    for (int64_t i = 0; i < task.repetitions; ++i) {
      std::map<PoolKey, int64_t> next;
      for (const auto& [key, elems] : stride) {
        next[key] = i % task.num_sets * elems;
      }
      std::vector<BufferRange> ranges;
      for (const OperandSpec& operand : task.spec.operands) {
        int64_t& begin = next[pool_of(operand)];
        ranges.push_back({pools.at(pool_of(operand)), begin, begin + operand.shape.num_elems()});
        begin += aligned_elems(operand);
      }
      builder.add_task(task.spec, ranges, stream, {});
    }
    return builder.take();
  }

  std::span<const RepeatedTask> tasks_;
  std::map<PoolKey, int64_t> pool_elems_;
};

}  // namespace

int64_t operand_set_bytes(const OpSpec& spec) {
  int64_t bytes = 0;
  for (const auto& [key, elems] : set_elems(spec)) {
    bytes += elems * static_cast<int64_t>(dtype_bytes(key.first));
  }
  return bytes;
}

std::vector<int32_t> operand_integers(const RepeatedTask& task) {
  std::vector<int32_t> set;
  for (size_t i = 0; i < task.spec.operands.size(); ++i) {
    const OperandSpec& operand = task.spec.operands[i];
    if (pool_of(operand) == PoolKey(DType::kI32, false)) {
      const std::vector<int32_t> values = valid_integers(task.spec, i);
      set.insert(set.end(), values.begin(), values.end());
      set.resize(set.size() + static_cast<size_t>(aligned_elems(operand)) - values.size());
    }
  }
  std::vector<int32_t> all;
  for (int64_t i = 0; i < task.num_sets; ++i) {
    all.insert(all.end(), set.begin(), set.end());
  }
  return all;
}

std::vector<Program> repeated_task_programs(std::span<const RepeatedTask> tasks) {
  return PoolPrograms(tasks).build();
}

}  // namespace braid
