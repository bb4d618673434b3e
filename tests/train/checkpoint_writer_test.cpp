// Checkpoints that are written while the run trains on: the files of a save that steps wait for,
// storage that is slow or fails, and runs that end or go back meanwhile.
#include "train/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "base/expect_error.h"
#include "checkpoint/checkpoint.h"
#include "support/damaged_runs.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Storage that does nothing until it is opened. Waiting has a limit, so that a run whose steps
/// wait for the storage fails instead of hanging.
class Gate {
 public:
  void open() {
    {
      const std::scoped_lock lock(mutex_);
      is_open_ = true;
    }
    changed_.notify_all();
  }
  /// Whether it was opened in time.
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

class AsyncCheckpoints : public DamagedRuns {
 protected:
  AsyncCheckpoints() {
    config_.parallel.ranks = 2;
    config_.train.global_batch = 8;
    config_.checkpoint.interval = 4;
    config_.checkpoint.async = true;
  }

  TrainerOptions quiet() {
    TrainerOptions options;
    options.print = [this](std::string_view text) { output_ += text; };
    return options;
  }
  /// The same run, whose steps wait for each save.
  void train_waiting() {
    RunConfig waiting = config_;
    waiting.checkpoint.async = false;
    waiting.logging.run_folder = path("waiting");
    TrainerOptions options;
    options.print = [](std::string_view) {};
    train(waiting, options);
  }
  void expect_same_checkpoints(std::vector<int64_t> steps) {
    for (const int64_t step : steps) {
      expect_same_files("run", "waiting", step, config_.parallel.ranks);
      const std::string index = fmt::format("/checkpoints/step_{:08}/index.json", step);
      EXPECT_EQ(read("run" + index), read("waiting" + index));
      const LoadedCheckpoint checkpoint(path(fmt::format("run/checkpoints/step_{:08}", step)));
      EXPECT_EQ(checkpoint.state().consumed_samples, step * config_.train.global_batch);
    }
    EXPECT_EQ(records_of(metrics("run")), records_of(metrics("waiting")));
  }
};

struct WrittenLayout {
  const char* name;
  ParallelConfig parallel;
  const char* dtype = "float32";
  const char* moments = "float32";
};

void PrintTo(const WrittenLayout& layout, std::ostream* out) {
  *out << layout.name;
}

class AsyncLayouts : public AsyncCheckpoints, public testing::WithParamInterface<WrittenLayout> {};

TEST_P(AsyncLayouts, WriteTheFilesOfASaveThatStepsWaitFor) {
  config_.parallel = GetParam().parallel;
  config_.train.dtype = GetParam().dtype;
  config_.optimizer.moments_dtype = GetParam().moments;
  train(config_, quiet());
  train_waiting();
  expect_same_checkpoints({4, 8, 12});
  EXPECT_THAT(output_, ContainsRegex("saved    .*step_00000008 in .* s, of which steps waited "));
  EXPECT_THAT(output_, ContainsRegex("saved    .*step_00000012 in [0-9.]+ s\n"));
}

ParallelConfig staged() {
  ParallelConfig parallel{.ranks = 2, .pipeline = 2};
  parallel.schedule = "1f1b";
  return parallel;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, AsyncLayouts,
    testing::Values(WrittenLayout{"copies", {.ranks = 2}, "bfloat16"},
                    WrittenLayout{
                        "optimizer", {.ranks = 2, .shard = "optimizer"}, "bfloat16", "bfloat16"},
                    WrittenLayout{"gradients", {.ranks = 2, .shard = "gradients"}},
                    WrittenLayout{"parameters", {.ranks = 2, .shard = "parameters"}, "bfloat16"},
                    WrittenLayout{"tensor", {.ranks = 2, .tensor = 2}},
                    WrittenLayout{"stages", staged()}),
    [](const auto& layout) { return std::string(layout.param.name); });

TEST_F(AsyncCheckpoints, SlowStorageStopsNoStepUntilTheNextSave) {
  Gate gate;
  std::vector<std::string> events;  // "step 5", "storage opened"
  std::mutex mutex;
  TrainerOptions options = quiet();
  options.on_step = [&](const StepRecord& record) {
    const std::scoped_lock lock(mutex);
    events.push_back("step " + std::to_string(record.step));
    if (record.step == 8) {
      gate.open();
    }
  };
  options.adjust_save = [&](SaveOptions& save) {
    save.before_step = [&](std::string_view what) {
      if (what == "publish") {
        EXPECT_TRUE(gate.wait());
      }
      const std::scoped_lock lock(mutex);
      events.emplace_back(what);
    };
  };
  train(config_, options);
  train_waiting();
  expect_same_checkpoints({4, 8, 12});
  const auto place = [&](std::string_view what) {
    return std::ranges::find(events, what) - events.begin();
  };
  EXPECT_LT(place("step 8"), place("publish"));
  EXPECT_LT(place("make folder"), place("publish"));
  EXPECT_LT(place("publish"), place("step 9"));  // the save after step 8 waits for this one
  const size_t saved = output_.find("saved    " + path("run/checkpoints/step_00000004"));
  ASSERT_NE(saved, std::string::npos);
  EXPECT_GT(saved, output_.find(" 8/12"));
}

TEST_F(AsyncCheckpoints, AnErrorOfTheWriterEndsTheRunAtTheNextStep) {
  config_.checkpoint.interval = 2;
  TrainerOptions options = quiet();
  std::vector<int64_t> steps;
  options.on_step = [&](const StepRecord& record) { steps.push_back(record.step); };
  int num_saves = 0;
  options.adjust_save = [&num_saves](SaveOptions& save) {
    if (++num_saves == 2) {
      save.before_step = [](std::string_view what) {
        if (what == "publish") {
          throw DataError("the disk is full");
        }
      };
    }
  };
  EXPECT_EQ(message_of<DataError>([&] { train(config_, options); }), "the disk is full");
  EXPECT_GE(steps.back(), 4);
  EXPECT_LE(steps.back(), 6);  // the third save would wait
  EXPECT_EQ(read("run/checkpoints/latest"), "step_00000002\n");
  EXPECT_THAT(output_, Not(HasSubstr("saved    " + newest())));
}

TEST_F(AsyncCheckpoints, ARunEndsWithItsLastSave) {
  config_.checkpoint.interval = 11;  // one step before the end
  config_.checkpoint.at_end = false;
  config_.eval.interval = 0;
  Gate gate;
  TrainerOptions options = quiet();
  options.on_step = [&](const StepRecord& record) {
    if (record.step == 12) {
      gate.open();
    }
  };
  bool fails = false;
  options.adjust_save = [&](SaveOptions& save) {
    save.before_step = [&](std::string_view what) {
      if (what == "publish") {
        EXPECT_TRUE(gate.wait());
        if (fails) {
          throw DataError("the disk is full");
        }
      }
    };
  };
  EXPECT_EQ(train(config_, options).checkpoint, path("run/checkpoints/step_00000011"));
  EXPECT_EQ(LoadedCheckpoint(path("run/checkpoints/step_00000011")).state().step, 11);
  fails = true;
  config_.logging.run_folder = path("failed");
  EXPECT_EQ(message_of<DataError>([&] { train(config_, options); }), "the disk is full");
  EXPECT_EQ(find_latest_checkpoint(path("failed/checkpoints")), std::nullopt);
}

TEST_F(AsyncCheckpoints, AValueThatIsNotFiniteIsNotSaved) {
  config_.parallel.ranks = 1;  // or the other rank might write its copy
  config_.runtime.rerun_steps = 0;
  config_.runtime.detect_nan = "off";
  TrainerOptions options =
      damaged({.rank = 0, .after_steps = {4}, .bits = kNotFinite, .num_weights = kOutputWeights});
  EXPECT_THAT(message_of<DataError>([&] { train(config_, options); }),
              ContainsRegex("^no checkpoint of step 4 is written, because it must be finite: "
                            "tensor \"head.output\" has (NaN|infinity) at element"));
  EXPECT_EQ(find_latest_checkpoint(path("run/checkpoints")), std::nullopt);
}

// The checkpoint to which the run goes back is still being written when a copy differs.
TEST_F(AsyncCheckpoints, ARunThatGoesBackWaitsForTheCheckpoint) {
  config_.parallel.ranks = 3;
  config_.train.global_batch = 6;
  config_.runtime.check_replicas = 2;
  Gate gate;
  TrainerOptions options = damaged({.rank = 1, .after_steps = {5}});
  options.on_step = [&gate, damage = options.on_step](const StepRecord& record) {
    damage(record);
    if (record.step == 6) {
      gate.open();
    }
  };
  options.adjust_save = [&](SaveOptions& save) {
    save.before_step = [&](std::string_view what) {
      EXPECT_TRUE(what != "publish" || gate.wait());
    };
  };
  train(config_, options);
  EXPECT_THAT(metrics("run").reruns.at(1).message,
              HasSubstr("steps 5 to 6 ran again from " + newest() + ", and all copies are equal"));
  EXPECT_LT(output_.find("saved    " + newest()), output_.find("rerun    "));
  train_waiting();
  expect_same_checkpoints({4, 8, 12});
}

TEST_F(AsyncCheckpoints, ProcessesWriteTogether) {
  LocalProcesses processes(2);
  EXPECT_THAT(on_threads(2,
                         [&](int rank) {
                           TrainerOptions options;
                           options.print = [rank, this](std::string_view text) {
                             output_ += rank == 0 ? text : "";
                           };
                           options.processes = &processes[rank];
                           train(config_, options);
                         }),
              ElementsAre("", ""));
  EXPECT_THAT(output_, ContainsRegex("saved    .*step_00000004 in .* s, of which steps waited "));
  train_waiting();
  expect_same_checkpoints({4, 8, 12});
}

TEST_F(AsyncCheckpoints, AnErrorOfOneProcessEndsAll) {
  LocalProcesses processes(2);
  const std::vector<std::string> errors = on_threads(2, [&](int rank) {
    TrainerOptions options;
    options.print = [](std::string_view) {};
    options.processes = &processes[rank];
    options.adjust_save = [rank](SaveOptions& save) {
      save.before_step = [rank](std::string_view what) {
        if (rank == 1 && what.starts_with("optimizer")) {
          throw DataError("the disk is full");
        }
      };
    };
    train(config_, options);
  });
  EXPECT_THAT(errors[0], AllOf(StartsWith("aborted: "), HasSubstr("the disk is full")));
  EXPECT_EQ(errors[1], "the disk is full");
  EXPECT_EQ(find_latest_checkpoint(path("run/checkpoints")), std::nullopt);
}

}  // namespace
}  // namespace braid
