#include "train/step_wishes.h"

#include <algorithm>
#include <vector>

#include "base/errors.h"

namespace braid {
namespace {

std::vector<std::string> gather(Engine& engine, ProcessGroup& processes, int64_t step,
                                const std::string& own) {
  try {
    return processes.all_gather("a stop", own);
  } catch (const AbortedError& error) {
    end_steps_in_flight(engine);  // may throw
    const std::string last = engine.last_meeting();
    throw AbortedError(fmt::format("after step {}, in which no task waits{}: {}", step,
                                   last.empty() ? "" : fmt::format(" (the last was {})", last),
                                   error.what()));
  }
}

}  // namespace

void end_steps_in_flight(Engine& engine) {
  while (engine.steps_in_flight() > 0) {
    engine.finish_step();
  }
}

std::string greatest_wishes(Engine& engine, ProcessGroup& processes, int64_t step,
                            const std::string& own) {
  std::string greatest = own;
  if (processes.size() == 1) {
    return greatest;
  }
  for (const std::string& one : gather(engine, processes, step, own)) {
    check(one.size() == own.size(), "wishes of {} characters", one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      greatest[i] = std::max(greatest[i], one[i]);
    }
  }
  return greatest;
}

}  // namespace braid
