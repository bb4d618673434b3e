#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/executor.h"
#include "support/executor_helpers.h"

/// What the tests of the contract run: executors of one kind.
namespace braid {

struct ExecutorKind {
  std::string name;
  /// An executor of one rank for these programs, with a memory plan of its own making.
  std::function<std::unique_ptr<Executor>(std::vector<Program>, TaskHook)> make;
  /// Why this machine cannot run it; empty if it can.
  std::string skip_reason = {};
};

inline std::string executor_kind_name(const ::testing::TestParamInfo<ExecutorKind>& info) {
  return info.param.name;
}

class ExecutorContract : public ::testing::TestWithParam<ExecutorKind> {
 protected:
  void SetUp() override {
    if (!GetParam().skip_reason.empty()) {
      GTEST_SKIP() << GetParam().skip_reason;
    }
  }
  std::unique_ptr<Executor> make(std::vector<Program> programs, TaskHook hook = {}) {
    return GetParam().make(std::move(programs), std::move(hook));
  }
  std::unique_ptr<Executor> make(Program program, TaskHook hook = {}) {
    std::vector<Program> programs;
    programs.push_back(std::move(program));
    return make(std::move(programs), std::move(hook));
  }
};

}  // namespace braid
