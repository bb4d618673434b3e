#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "ir/op_spec.h"
#include "support/executor_helpers.h"

namespace braid {

/// Blocks a task until it is released, as in a stuck rank. Threads that the executor leaves behind
/// can then end, so that sanitizers report no leak.
class Obstacle {
 public:
  using Matches = std::function<bool(const OpSpec&)>;

  /// In front of the `count`-th task that matches, from 1, and of all later ones.
  TaskHook before(Matches matches, int count = 1) {
    return [removed = removed_, seen = std::make_shared<std::atomic<int>>(0),
            matches = std::move(matches), count](const OpSpec& spec) {
      if (!matches(spec) || ++*seen < count) {
        return;
      }
      while (!removed->load()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    };
  }
  TaskHook before_fill_of(double value) {
    return before([value](const OpSpec& spec) { return is_fill_of(spec, value); });
  }
  TaskHook before_op(std::string op, int count = 1) {
    return before([op = std::move(op)](const OpSpec& spec) { return spec.op == op; }, count);
  }
  void remove() { removed_->store(true); }

 private:
  // Also the thread's that is left behind.
  std::shared_ptr<std::atomic<bool>> removed_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace braid
