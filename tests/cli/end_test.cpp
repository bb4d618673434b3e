// The process ends although one of its threads never does.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>

#include "base/errors.h"
#include "cli/app.h"
#include "cli/cli_fixture.h"
#include "config/load.h"
#include "runtime/engine.h"
#include "support/cpu_executors.h"
#include "train/trainer.h"

namespace braid {
namespace {

/// What `braid train run.toml` does, with a rank that never comes back from a task. What runs at
/// the end of `main` would wait for it.
void train_with_a_stuck_rank(const std::string& folder) {
  std::atexit([] {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
  });
  const std::vector<std::string> overrides{"runtime.timeout_s=1"};
  RunConfig config = load_config(folder + "/run.toml", overrides);
  config.data.train = folder + "/corpus.txt";
  config.logging.run_folder = folder + "/run";
  TrainerOptions options;
  options.print = [](std::string_view) {};
  options.adjust_engine = [](EngineOptions& engine) {
    engine.stuck_timeout_ns = 200'000'000;
    engine.make_executor = hooked_ranks([](int rank) {
      return rank == 0 ? TaskHook() : [](const OpSpec& spec) {
        while (spec.op == "adamw") {
          std::this_thread::sleep_for(std::chrono::seconds(1));
        }
      };
    });
  };
  try {
    train(config, options);
  } catch (const DeviceError& error) {
    end_after_device_error(error.what());
  }
}

void fail_to_allocate() {
  throw std::bad_alloc();
}

struct NeedsMemoryToEnd {
  ~NeedsMemoryToEnd() { fail_to_allocate(); }
};

void run_out_of_memory_in_a_destructor() {
  std::string arguments[] = {"braid", "--version"};
  char* argv[] = {arguments[0].data(), arguments[1].data(), nullptr};
  run_cli(2, argv);
  const NeedsMemoryToEnd last;
}

class End : public Cli {};

TEST_F(End, OutOfMemoryInADestructorIsALine) {
  EXPECT_EXIT(run_out_of_memory_in_a_destructor(), testing::ExitedWithCode(1),
              "^braid: out of memory\n$");
}

TEST_F(End, IsNotHeldUpByAStuckTask) {
  write_run();
  EXPECT_EXIT(train_with_a_stuck_rank(folder_.path().string()), testing::ExitedWithCode(1),
              "^braid: rank 1 has not ended the step that rank 0 ended 1 s ago; .*\\(adamw .*\\) "
              "still runs 0.2 s after the failure\n$");
}

}  // namespace
}  // namespace braid
