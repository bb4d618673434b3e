#include "launch/file_watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/file_operation.h"
#include "base/temp_folder.h"
#include "checkpoint/checkpoint.h"
#include "comm/wires.h"

namespace braid {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kTimeoutNs = 200'000'000;

/// Storage that freezes at the first operation of that name on a file whose path contains `part`,
/// until the end of the object.
class FrozenStorage {
 public:
  FrozenStorage(std::string what, std::string part) {
    set_file_operation_hook([this, what = std::move(what), part = std::move(part)](
                                std::string_view begun, std::string_view path) {
      while (begun == what && path.find(part) != std::string_view::npos && !thawed_) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  ~FrozenStorage() {
    thaw();
    set_file_operation_hook({});
  }
  FrozenStorage(const FrozenStorage&) = delete;
  FrozenStorage& operator=(const FrozenStorage&) = delete;
  void thaw() { thawed_ = true; }

 private:
  std::atomic<bool> thawed_{false};
};

/// What each of two ranks says when they write a checkpoint together and the storage of rank 1
/// freezes. It is watched; rank 0 waits for its records without a timeout.
std::vector<std::string> errors_of_save(const std::string& folder, FrozenStorage& storage) {
  LocalProcesses processes(2);
  const FileWatchdog watchdog(processes[1], kTimeoutNs);
  const std::vector<float> values(100, 1.0f);
  return on_threads(2, [&](int rank) {
    std::vector<CheckpointShard> shards(2);
    for (int shard = 0; shard < 2; ++shard) {
      TensorStream stream = stream_of({{.name = fmt::format("of {}", shard),
                                        .shape = {100},
                                        .data = std::as_bytes(std::span(values))}});
      if (shard != rank) {
        stream.send = {};
      }
      shards[static_cast<size_t>(shard)].weights = std::move(stream);
    }
    try {
      save_checkpoint(folder, {.step = 5}, shards,
                      {.together = {.leads = rank == 0,
                                    .all_gather = [&](std::string_view name, std::string bytes) {
                                      return processes[rank].all_gather(name, std::move(bytes));
                                    }}});
    } catch (...) {
      storage.thaw();  // rank 0 has stopped waiting: rank 1 may end, too
      throw;
    }
  });
}

TEST(FileWatchdog, EndsTheWaitForARankWhoseWriteHangs) {
  for (const char* const what : {"creation of", "write of", "fsync of", "rename of"}) {
    const TempFolder folder;
    FrozenStorage storage(what, "model-00002-of-00002");
    const std::vector<std::string> errors = errors_of_save(folder / "checkpoints", storage);
    EXPECT_THAT(errors[0], AllOf(StartsWith(fmt::format("aborted: rank 1 ({}): {} '{}",
                                                        process_name(), what, folder / "")),
                                 HasSubstr("/model-00002-of-00002.safetensors' has not ended for "
                                           "0.2 s (runtime.timeout_s)")));
    EXPECT_EQ(find_latest_checkpoint(folder / "checkpoints"), std::nullopt);
  }
}

TEST(FileWatchdog, NamesAReadOfACheckpointThatHangs) {
  const TempFolder folder;
  const std::vector<float> values(100, 1.0f);
  const CheckpointShard shard{
      .weights =
          stream_of({{.name = "w", .shape = {100}, .data = std::as_bytes(std::span(values))}})};
  const std::string path =
      save_checkpoint(folder / "checkpoints", {.step = 5}, std::vector{shard}, {});
  for (const std::string file : {"state.json", "index.json", "model.safetensors"}) {
    LocalProcesses processes(2);
    const FileWatchdog watchdog(processes[1], kTimeoutNs);
    FrozenStorage storage("open of", path + "/" + file);
    const auto errors = on_threads(2, [&](int rank) {
      if (rank == 1) {
        const LoadedCheckpoint loaded(path);
      } else {
        try {
          processes[rank].barrier("loaded");
        } catch (...) {
          storage.thaw();
          throw;
        }
      }
    });
    EXPECT_THAT(errors[0], HasSubstr(fmt::format("open of '{}/{}' has not ended", path, file)));
  }
}

TEST(FileWatchdog, LetsOperationsPassThatEnd) {
  const TempFolder folder;
  const auto lone = make_lone_process();
  {
    const FileWatchdog watchdog(*lone, kTimeoutNs);
    const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(2 * kTimeoutNs);
    while (std::chrono::steady_clock::now() < end) {
      write_file_atomically(folder / "a", "text");
    }
  }
  EXPECT_EQ(lone->aborted(), std::nullopt);
}

}  // namespace
}  // namespace braid
