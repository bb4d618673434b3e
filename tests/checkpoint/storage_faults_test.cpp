// Checkpoints on storage that fails: each call of a save or a load fails once, and the power is
// lost at any moment. A complete checkpoint is found afterwards, or there is a named error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/samples.h"
#include "checkpoint/simulated_disk.h"
#include "checkpoint/watched_storage.h"
#include "support/thinned.h"

namespace braid {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

SampleTraining sample(int64_t step, const std::string& model) {
  SampleTraining training(step);
  training.state.model = model;
  return training;
}

/// Two checkpoints lie there; a call of saving the third fails. What was there is there or the new
/// one, and the next save is as if nothing had been.
void fail_each_call_of_a_save(StorageFault fault, bool behind_steps = false) {
  const SampleTraining before = sample(20, "before");
  SampleTraining next = sample(30, "next");
  std::set<std::string> kinds;
  for (int64_t call = 0;; ++call) {
    const MemoryFolder temp;
    const std::string folder = temp / "c";
    sample(10, "first").save(folder);
    before.save(folder);
    WatchedStorage storage(temp.path().string());
    storage.fail(call, fault);
    std::string error;
    try {
      behind_steps ? next.save_behind(folder) : next.save_cut(folder);
    } catch (const DataError& caught) {
      error = caught.what();
      EXPECT_THAT(error, HasSubstr(folder));
    }
    const std::string failed = storage.failed();
    storage.fail(-1, StorageFault::kNone);
    const LoadedCheckpoint latest(find_latest_checkpoint(folder).value());
    EXPECT_TRUE(next.equals(latest) || (!error.empty() && before.equals(latest))) << failed;
    const SampleTraining last = sample(40, "last");
    last.save(folder);
    EXPECT_TRUE(last.equals(LoadedCheckpoint(find_latest_checkpoint(folder).value()))) << failed;
    EXPECT_TRUE(fault != StorageFault::kInterrupted || error.empty()) << error;
    if (failed.empty()) {
      EXPECT_EQ(error, "");
      break;
    }
    kinds.insert(failed.substr(0, failed.find(' ')));
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"close", "create", "fsync", "mkdir", "open", "rename",
                                          "rmdir", "unlink", "write"}));
}

TEST(StorageFaults, ASaveSurvivesAnErrorOfEachCall) {
  fail_each_call_of_a_save(StorageFault::kInputOutputError);
}

// checkpoint.async.
TEST(StorageFaults, ASaveBehindStepsSurvivesAnErrorOfEachCall) {
  fail_each_call_of_a_save(StorageFault::kInputOutputError, true);
}

TEST(StorageFaults, ASaveSurvivesAFullDiskAtEachCall) {
  fail_each_call_of_a_save(StorageFault::kNoSpace);
}

TEST(StorageFaults, InterruptedCallsAndShortWritesChangeNothing) {
  fail_each_call_of_a_save(StorageFault::kInterrupted);
}

TEST(StorageFaults, ALoadReportsAnErrorOfEachCall) {
  const MemoryFolder temp;
  const std::string path = sample(10, "there").save_cut(temp / "c");
  int64_t num_errors = 0;
  for (bool failed = true; failed;) {
    WatchedStorage storage(temp.path().string());
    storage.fail(num_errors, StorageFault::kInputOutputError);
    std::string error;
    try {
      const LoadedCheckpoint loaded(find_latest_checkpoint(temp / "c").value());
      EXPECT_TRUE(sample(10, "there").equals(loaded));
    } catch (const DataError& caught) {
      error = caught.what();
    }
    failed = !storage.failed().empty();
    EXPECT_EQ(!error.empty(), failed) << storage.failed();
    num_errors += failed ? 1 : 0;
  }
  EXPECT_GT(num_errors, 10);
}

// Storage may freeze in any of these calls. The watchdog of a run names the operation.
TEST(StorageFaults, EveryCallIsAnOperationThatAWatchdogSees) {
  const MemoryFolder temp;
  WatchedStorage storage(temp.path().string());
  for (int64_t step = 1; step <= 4; ++step) {
    sample(step, "any").save_cut(temp / "c");
  }
  const LoadedCheckpoint loaded(find_latest_checkpoint(temp / "c").value());
  storage.fail(10, StorageFault::kInputOutputError);
  EXPECT_THROW(sample(5, "failing").save_cut(temp / "c"), DataError);
  EXPECT_THAT(storage.unseen(), IsEmpty());
}

/// A run that saves: steps go on, a checkpoint is replaced, and the run goes back. The log of its
/// calls has a mark after each save.
struct SavedRun {
  SavedRun() {
    WatchedStorage storage(temp.path().string());
    for (size_t i = 0; i < saves.size(); ++i) {
      const std::string folder = temp / "run/checkpoints";
      i % 2 == 0 ? saves[i].save_behind(folder) : saves[i].save(folder);
      storage.mark(saves[i].state.model);
    }
    log = storage.log();
  }

  MemoryFolder temp;
  std::vector<SampleTraining> saves = {sample(10, "0"), sample(20, "1"), sample(30, "2"),
                                       sample(30, "3"), sample(25, "4"), sample(35, "5")};
  std::vector<StorageCall> log;
};

TEST(PowerLoss, LeavesTheLastCompleteCheckpointOrTheNextOne) {
  constexpr int kLosses = thinned_count(1000, 4);
  const SavedRun run;
  std::mt19937 random(1);
  std::vector<size_t> moments(kLosses);
  std::ranges::generate(moments, [&] { return random() % (run.log.size() + 1); });
  std::ranges::sort(moments);
  std::set<size_t> resumed;
  SimulatedDisk disk(run.temp.path().string());
  size_t num_done = 0;
  size_t num_saved = 0;
  for (int loss = 0; loss < kLosses; ++loss) {
    const size_t num_calls = moments[static_cast<size_t>(loss)];
    for (; num_done < num_calls; ++num_done) {
      disk.add(run.log[num_done]);
      num_saved += run.log[num_done].kind == StorageCallKind::kMark ? 1 : 0;
    }
    const MemoryFolder after;
    disk.lose_power(random, after.path().string());
    const std::string folder = after / "run/checkpoints";
    SCOPED_TRACE("loss " + std::to_string(loss) + " after call " + std::to_string(num_calls) +
                 " and save " + std::to_string(num_saved));
    const std::optional<std::string> latest = find_latest_checkpoint(folder);
    if (!latest) {
      ASSERT_EQ(num_saved, 0u);
    } else {
      const LoadedCheckpoint loaded(*latest);
      const bool is_last = num_saved > 0 && run.saves[num_saved - 1].equals(loaded);
      const bool is_next = num_saved < run.saves.size() && run.saves[num_saved].equals(loaded);
      ASSERT_TRUE(is_last || is_next) << *latest;
      resumed.insert(num_saved - (is_last ? 1 : 0));
    }
    for (const CheckpointEntry& entry : list_checkpoints(folder)) {
      ASSERT_EQ(LoadedCheckpoint(entry.path).state().step, entry.step);
    }
    if (loss % 10 == 0) {  // the run goes on there
      const SampleTraining more = sample(50, "more");
      more.save(folder);
      ASSERT_TRUE(more.equals(LoadedCheckpoint(find_latest_checkpoint(folder).value())));
    }
  }
  EXPECT_EQ(resumed.size(), run.saves.size());
}

// The disk of the test loses what a careless writer does not sync.
TEST(PowerLoss, TakesWhatIsNotSynced) {
  const MemoryFolder temp;
  const std::string path = temp / "file";
  const StorageCall create{.kind = StorageCallKind::kCreate, .path = path, .file = 7};
  const StorageCall write{
      .kind = StorageCallKind::kWrite, .path = path, .file = 7, .bytes = "some bytes"};
  const StorageCall sync{.kind = StorageCallKind::kSync, .path = path, .file = 7};
  const StorageCall sync_folder{.kind = StorageCallKind::kSyncFolder, .path = temp.path().string()};
  const auto outcomes = [&](const std::vector<StorageCall>& calls) {
    std::set<std::string> found;
    std::mt19937 random(1);
    for (int i = 0; i < 100; ++i) {
      SimulatedDisk disk(temp.path().string());
      for (const StorageCall& call : calls) {
        disk.add(call);
      }
      const MemoryFolder after;
      disk.lose_power(random, after.path().string());
      std::ifstream file(after / "file", std::ios::binary);
      found.insert(file ? std::string(std::istreambuf_iterator<char>(file), {}) : "no file");
    }
    return found;
  };
  EXPECT_EQ(outcomes({create, write, sync, sync_folder}), (std::set<std::string>{"some bytes"}));
  EXPECT_EQ(outcomes({create, write, sync}), (std::set<std::string>{"some bytes", "no file"}));
  const std::set<std::string> unsynced = outcomes({create, write, sync_folder});
  EXPECT_TRUE(unsynced.contains("some bytes") && unsynced.contains("") &&
              unsynced.contains(std::string(10, '\0')));
  EXPECT_GT(unsynced.size(), 6u);  // beside these, some of its beginnings
}

}  // namespace
}  // namespace braid
