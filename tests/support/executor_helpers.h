#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/executor.h"
#include "ir/program.h"
#include "ops/attributes.h"
#include "ops/elementwise.h"

namespace braid {

/// Runs on a task's stream before each task except collectives, with the task's spec. It may sleep
/// to delay the stream. An exception that it throws is an error of that task.
using TaskHook = std::function<void(const OpSpec&)>;

inline bool is_fill_of(const OpSpec& spec, double value) {
  return spec.op == "fill" && attributes_of<FillAttributes>(spec).value == value;
}

inline std::vector<float> read_floats(Executor& executor, std::string_view buffer, size_t count) {
  std::vector<float> values(count);
  executor.read(buffer, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

inline void write_floats(Executor& executor, std::string_view buffer,
                         const std::vector<float>& values) {
  executor.write(buffer, 0, std::as_bytes(std::span(values)));
}

/// Remembers which ops ran, in the order in which they started.
class OpRecorder {
 public:
  TaskHook hook() {
    return [this](const OpSpec& spec) {
      const std::lock_guard lock(mutex_);
      ops_.push_back(spec.op);
    };
  }
  std::vector<std::string> ops() const {
    const std::lock_guard lock(mutex_);
    return ops_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> ops_;
};

using BufferValues = std::map<std::string, std::vector<float>>;

/// Runs fill, copy, add and all_reduce over one rank, one after the other: the meaning of a
/// program.
class Interpreter {
 public:
  explicit Interpreter(const Program& program) : program_(program) {
    for (const Buffer& buffer : program.buffers) {
      values_.emplace_back(static_cast<size_t>(buffer.num_elems()));
    }
  }

  void set(const BufferValues& persistent) {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (program_.buffers[i].lifetime == Lifetime::kPersistent) {
        values_[i] = persistent.at(program_.buffers[i].name);
      }
    }
  }

  void run() {
    for (const Task& task : program_.tasks) {
      run(task);
    }
  }

  const std::vector<float>& values(size_t buffer) const { return values_[buffer]; }

 private:
  void run(const Task& task) {
    const OpSpec& spec = program_.spec(task);
    const auto operands = program_.operands_of(task);
    const auto at = [&](size_t operand) {
      return values_[operands[operand].buffer.index()].begin() + operands[operand].begin;
    };
    for (int64_t i = 0; i < operands[0].end - operands[0].begin; ++i) {
      if (spec.op == "fill") {
        at(0)[i] = static_cast<float>(attributes_of<FillAttributes>(spec).value);
      } else if (spec.op == "copy") {
        at(1)[i] = at(0)[i];
      } else if (spec.op == "add") {
        at(2)[i] = at(0)[i] + at(1)[i];
      } else {
        ASSERT_EQ(spec.op, "all_reduce");
      }
    }
  }

  const Program& program_;
  std::vector<std::vector<float>> values_;
};

inline BufferValues random_values(const Program& program, uint64_t seed) {
  std::mt19937_64 random(seed);
  BufferValues values;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.lifetime == Lifetime::kPersistent) {
      auto& of_buffer = values[buffer.name];
      for (int64_t i = 0; i < buffer.num_elems(); ++i) {
        of_buffer.push_back(static_cast<float>(random() % 1000) / 7.0f);
      }
    }
  }
  return values;
}

inline void expect_equal_bytes(Executor& executor, const Program& program,
                               const Interpreter& meaning) {
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.lifetime == Lifetime::kPersistent) {
      const auto& expected = meaning.values(i);
      const auto values = read_floats(executor, buffer.name, expected.size());
      EXPECT_EQ(std::memcmp(values.data(), expected.data(), expected.size() * sizeof(float)), 0)
          << buffer.name;
    }
  }
}

/// Now and then sleeps, differently on each call.
inline TaskHook random_delays(uint32_t seed) {
  struct Source {
    std::mutex mutex;
    std::mt19937 random;
  };
  auto source = std::make_shared<Source>();
  source->random.seed(seed);
  return [source](const OpSpec&) {
    std::unique_lock lock(source->mutex);
    const uint32_t number = source->random();
    lock.unlock();
    if (number % 4 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(number / 4 % 200));
    }
  };
}

}  // namespace braid
