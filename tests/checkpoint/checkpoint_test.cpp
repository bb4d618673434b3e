#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/checksum.h"
#include "base/errors.h"
#include "base/expect_error.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/samples.h"
#include "checkpoint/state_file.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

/// Names in a folder, sorted, hidden ones included.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_all(const std::string& path, std::string_view content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

int64_t latest_step(const std::string& folder) {
  return LoadedCheckpoint(find_latest_checkpoint(folder).value()).state().step;
}

TEST(Checkpoint, LoadsWhatItSaved) {
  const MemoryFolder temp;
  const std::string folder = temp / "a/b";
  const SampleTraining training(100);
  const std::string path = training.save(folder);
  EXPECT_EQ(path, folder + "/step_00000100");
  EXPECT_THAT(names_in(folder), ElementsAre("latest", "step_00000100"));
  EXPECT_THAT(names_in(path), ElementsAre("index.json", "model.safetensors",
                                          "optimizer.safetensors", "state.json"));
  EXPECT_EQ(find_latest_checkpoint(folder), path);
  EXPECT_TRUE(training.equals(LoadedCheckpoint(path)));
}

TEST(Checkpoint, EachWriterHasFilesOfItsOwn) {
  const MemoryFolder temp;
  const SampleTraining training(100);
  const std::string path = training.save_cut(temp / "c");
  EXPECT_THAT(names_in(path),
              ElementsAre("index.json", "model-00001-of-00003.safetensors",
                          "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
                          "optimizer-00001-of-00002.safetensors",
                          "optimizer-00002-of-00002.safetensors", "state.json"));
  EXPECT_TRUE(training.equals(LoadedCheckpoint(path)));
  const SafetensorsFile right(path + "/model-00002-of-00003.safetensors");
  EXPECT_EQ(right.entry("wte@2").shape, (Shape{3, 2}));
}

TEST(Checkpoint, ReadsAnyRangeOfAnyPieces) {
  const MemoryFolder temp;
  const SampleTraining training(100);
  const LoadedCheckpoint loaded(training.save_cut(temp / "c"));
  for (const auto& [name, whole] :
       {std::pair{"wte", &training.matrix}, {"wte.exp_avg", &training.moment}}) {
    const StoredTensor& tensor = loaded.tensor(name, DType::kF32, {3, 4});
    for (int64_t begin = 0; begin <= 12; ++begin) {
      for (int64_t end = begin; end <= 12; ++end) {
        std::vector<float> values(static_cast<size_t>(end - begin));
        loaded.read(tensor, begin, std::as_writable_bytes(std::span(values)));
        EXPECT_TRUE(std::equal(values.begin(), values.end(), whole->begin() + begin))
            << name << " from " << begin << " to " << end;
      }
    }
    std::vector<float> two(2);
    EXPECT_THROW(loaded.read(tensor, 11, std::as_writable_bytes(std::span(two))), InternalError);
  }
}

TEST(Checkpoint, TouchesTheFilesOfNeededTensorsOnly) {
  const MemoryFolder temp;
  const std::string path = SampleTraining(10).save_cut(temp / "c");
  for (const std::string& name : names_in(path)) {
    if (name.starts_with("optimizer") || name == "model-00003-of-00003.safetensors") {
      fs::remove(path + "/" + name);
    }
  }
  const LoadedCheckpoint loaded(path, [](std::string_view tensor) { return tensor == "wte"; });
  EXPECT_EQ(SampleTraining::read(loaded, "wte", {3, 4}), SampleTraining(10).matrix);
  EXPECT_THROW(SampleTraining::read(loaded, "norm", {2}), InternalError);
  EXPECT_NE(loaded.find("norm"), nullptr);
}

TEST(Checkpoint, NamesTensorsThatAreNotThereOrAreOthers) {
  const MemoryFolder temp;
  const std::string path = SampleTraining(10).save(temp / "c");
  const LoadedCheckpoint loaded(path);
  EXPECT_EQ(message_of<DataError>([&] { loaded.tensor("head", DType::kF32, {2}); }),
            fmt::format("'{}' has no tensor \"head\"", path));
  EXPECT_EQ(message_of<DataError>([&] { loaded.tensor("norm", DType::kF32, {3}); }),
            fmt::format("tensor \"norm\" of '{}' is f32[2], expected f32[3]", path));
}

TEST(Checkpoint, RefusesShardsThatLeaveElementsOut) {
  const MemoryFolder temp;
  const SampleTraining training(10);
  std::vector<CheckpointShard> shards = training.cut();
  shards.erase(shards.begin());
  EXPECT_EQ(
      message_of<InternalError>([&] { save_checkpoint(temp / "c", training.state, shards, {}); }),
      "the pieces of tensor \"wte\" have only 6 elements of its shape [3,4]");
  EXPECT_FALSE(fs::exists(temp / "c"));
}

// A folder as braid wrote it before there was an index.
TEST(Checkpoint, ReadsTheFirstVersion) {
  const MemoryFolder temp;
  const SampleTraining training(10);
  const std::string path = training.save(temp / "c");
  const std::string text = read_all(path + "/state.json");
  StoredState stored = parse_state(text, "state.json");
  stored.version = 1;
  std::erase_if(stored.files, [](const FileRecord& file) { return file.name == "index.json"; });
  write_all(path + "/state.json", print_state(stored));
  fs::remove(path + "/index.json");
  EXPECT_TRUE(training.equals(LoadedCheckpoint(path)));
  fs::resize_file(path + "/optimizer.safetensors", 100);
  EXPECT_THAT(message_of<DataError>([&] { LoadedCheckpoint{path}; }),
              HasSubstr("optimizer.safetensors' is damaged"));
}

TEST(Checkpoint, EqualStatesGiveEqualBytes) {
  const MemoryFolder temp;
  const std::string one = SampleTraining(3).save_cut(temp / "one");
  const std::string two = SampleTraining(3).save_cut(temp / "two");
  for (const std::string& name : names_in(one)) {
    EXPECT_EQ(read_all(one + "/" + name), read_all(two + "/" + name)) << name;
  }
}

TEST(Checkpoint, KeepsTheNewest) {
  const MemoryFolder temp;
  for (const int64_t step : {10, 20, 30}) {
    SampleTraining(step).save(temp / "two", {.keep = 2, .before_step = {}});
    SampleTraining(step).save(temp / "one", {.keep = 1, .before_step = {}});
    SampleTraining(step).save(temp / "all", {.keep = 0, .before_step = {}});
  }
  EXPECT_THAT(names_in(temp / "two"), ElementsAre("latest", "step_00000020", "step_00000030"));
  EXPECT_THAT(names_in(temp / "one"), ElementsAre("latest", "step_00000030"));
  EXPECT_EQ(list_checkpoints(temp / "all").size(), 3u);
}

TEST(Checkpoint, KeepsTheNewestThatALaterFiniteStepHasConfirmed) {
  const MemoryFolder temp;
  const auto save = [&](int64_t step, int64_t last_finite_step) {
    SampleTraining(step).save(temp / "c", {.keep = 1, .last_finite_step = last_finite_step});
  };
  save(10, 10);
  save(20, 20);
  EXPECT_THAT(names_in(temp / "c"), ElementsAre("latest", "step_00000010", "step_00000020"));
  save(30, 15);  // of the steps from 16 on none was finite
  EXPECT_THAT(names_in(temp / "c"), ElementsAre("latest", "step_00000010", "step_00000030"));
  save(40, 40);
  EXPECT_THAT(names_in(temp / "c"), ElementsAre("latest", "step_00000030", "step_00000040"));
}

TEST(Checkpoint, ARunThatWentBackKeepsItsNewCheckpoint) {
  const MemoryFolder temp;
  for (const int64_t step : {100, 200, 150}) {
    SampleTraining(step).save(temp / "c", {.keep = 2, .before_step = {}});
  }
  EXPECT_THAT(names_in(temp / "c"), ElementsAre("latest", "step_00000150", "step_00000200"));
  EXPECT_EQ(latest_step(temp / "c"), 150);
}

TEST(Checkpoint, ReplacesOneOfTheSameStep) {
  const MemoryFolder temp;
  SampleTraining training(7);
  training.save(temp / "c");
  training.matrix[3] = 99;
  training.save(temp / "c");
  EXPECT_THAT(names_in(temp / "c"), ElementsAre("latest", "step_00000007"));
  EXPECT_TRUE(training.equals(LoadedCheckpoint(temp / "c/step_00000007")));
}

TEST(Checkpoint, RefusesTensorsWithTheWrongNumberOfBytes) {
  const SampleTraining training(1);
  std::vector<NamedTensor> weights = training.weights();
  weights[0].data = weights[0].data.first(44);
  EXPECT_EQ(message_of<InternalError>([&] { stream_of(weights); }),
            "tensor wte of f32[3,4] comes with 44 bytes");
}

/// Saves `training` in a child process that ends without any clean-up before step `death` of the
/// publication. Returns whether it got so far.
bool save_and_die(const SampleTraining& training, const std::string& folder, int death) {
  const pid_t child = ::fork();
  if (child == 0) {
    int step = 0;
    try {
      training.save_cut(folder, {.keep = 2, .before_step = [&](std::string_view) {
                                   if (step++ == death) {
                                     ::_exit(1);
                                   }
                                 }});
    } catch (...) {
      ::_exit(2);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_NE(WEXITSTATUS(status), 2);
  return WEXITSTATUS(status) == 1;
}

/// Kills a save of `next_step` at every moment, beside complete checkpoints of steps 10 and 20.
void kill_at_every_step(int64_t next_step) {
  int num_deaths = 0;
  for (bool died = true; died; ++num_deaths) {
    const MemoryFolder temp;
    const std::string folder = temp / "c";
    SampleTraining(10).save(folder);
    const SampleTraining before(20);
    before.save(folder);
    SampleTraining next(next_step);
    next.state.model = "new";
    died = save_and_die(next, folder, num_deaths);

    for (const CheckpointEntry& entry : list_checkpoints(folder)) {
      EXPECT_EQ(LoadedCheckpoint(entry.path).state().step, entry.step) << "death " << num_deaths;
    }
    const LoadedCheckpoint latest(find_latest_checkpoint(folder).value());
    EXPECT_TRUE(before.equals(latest) || next.equals(latest)) << "death " << num_deaths;

    SampleTraining(40).save(folder);
    EXPECT_EQ(latest_step(folder), 40) << "death " << num_deaths;
    EXPECT_EQ(names_in(folder).size(), 3u) << "leftovers after death " << num_deaths;
  }
  EXPECT_GT(num_deaths, 8);
}

TEST(Checkpoint, AKillAtAnyMomentLeavesACompleteLatest) {
  kill_at_every_step(30);
}

TEST(Checkpoint, AKillWhileReplacingLosesNeitherOldNorNew) {
  kill_at_every_step(20);
}

TEST(Checkpoint, AnErrorAtAnyMomentLeavesACompleteLatestAndNoRubbish) {
  int num_errors = 0;
  for (bool failed = true; failed; ++num_errors) {
    const MemoryFolder temp;
    SampleTraining(10).save(temp / "c");
    SampleTraining(20).save(temp / "c");
    int step = 0;
    const auto fail = [&](std::string_view) {
      if (step++ == num_errors) {
        throw DataError("no space");
      }
    };
    failed = false;
    try {
      SampleTraining(30).save_cut(temp / "c", {.keep = 2, .before_step = fail});
    } catch (const DataError&) {
      failed = true;
    }
    for (const CheckpointEntry& entry : list_checkpoints(temp / "c")) {
      EXPECT_EQ(LoadedCheckpoint(entry.path).state().step, entry.step) << "error " << num_errors;
    }
    EXPECT_GE(latest_step(temp / "c"), 20) << "error " << num_errors;
    const std::vector<std::string> names = names_in(temp / "c");
    EXPECT_TRUE(std::none_of(
        names.begin(), names.end(),
        [](const std::string& name) { return name.find(".tmp") != std::string::npos; }))
        << "error " << num_errors;
  }
  EXPECT_GT(num_errors, 8);
}

TEST(Checkpoint, AFullDiskIsAnErrorAndChangesNothing) {
  const MemoryFolder temp;
  const std::string folder = temp / "c";
  const std::string path = SampleTraining(10).save_cut(folder);
  int64_t largest_bytes = 0;
  for (const std::string& name : names_in(path)) {
    largest_bytes = std::max(largest_bytes, static_cast<int64_t>(fs::file_size(path + "/" + name)));
  }
  for (int64_t limit_bytes = 0; limit_bytes < largest_bytes; limit_bytes += 13) {
    {
      const FileSizeLimit full_disk(limit_bytes);
      EXPECT_THAT(message_of<DataError>([&] { SampleTraining(20).save_cut(folder); }),
                  HasSubstr("File too large"));
    }
    ASSERT_THAT(names_in(folder), ElementsAre("latest", "step_00000010"));
    ASSERT_EQ(latest_step(folder), 10);
  }
}

TEST(Checkpoint, FoldersThatCannotBeMadeAreNamed) {
  const MemoryFolder temp;
  write_all(temp / "file", "x");
  EXPECT_EQ(message_of<DataError>([&] { SampleTraining(1).save(temp / "file/c"); }),
            fmt::format("cannot make folder '{}': Not a directory", temp / "file/c"));
  EXPECT_EQ(message_of<DataError>([&] { SampleTraining(1).save(temp / "file"); }),
            fmt::format("cannot make folder '{}': Not a directory", temp / "file"));
  EXPECT_THAT(message_of<DataError>([&] { SampleTraining(1).save("/proc/braid"); }),
              HasSubstr("cannot make folder '/proc/braid': "));
}

/// Expects that the checkpoint cannot be loaded while `file` holds `content`.
void expect_refused(const std::string& path, const std::string& file, std::string_view content) {
  const std::string good = read_all(path + "/" + file);
  write_all(path + "/" + file, content);
  EXPECT_THAT(message_of<DataError>([&] { LoadedCheckpoint{path}; }), HasSubstr(path + "/" + file));
  write_all(path + "/" + file, good);
}

TEST(Checkpoint, EveryTruncationIsRefused) {
  const MemoryFolder temp;
  const std::string path = SampleTraining(10).save_cut(temp / "c");
  for (const std::string& name : names_in(path)) {
    const std::string good = read_all(path + "/" + name);
    for (size_t size = 0; size < good.size(); size += size < 16 ? 1 : 7) {
      expect_refused(path, name, std::string_view(good).substr(0, size));
    }
    expect_refused(path, name, std::string_view(good).substr(0, good.size() - 1));
    expect_refused(path, name, good + "\n");
  }
  EXPECT_TRUE(SampleTraining(10).equals(LoadedCheckpoint(path)));
}

TEST(Checkpoint, EveryFlippedBitIsRefused) {
  const MemoryFolder temp;
  const std::string path = SampleTraining(10).save_cut(temp / "c");
  for (const std::string& name : names_in(path)) {
    const std::string good = read_all(path + "/" + name);
    for (size_t position = 0; position < good.size(); ++position) {
      std::string bad = good;
      bad[position] = static_cast<char>(bad[position] ^ (1 << position % 8));
      expect_refused(path, name, bad);
    }
  }
}

TEST(Checkpoint, SaysWhatIsDamaged) {
  const MemoryFolder temp;
  const std::string path = SampleTraining(10).save(temp / "c");
  const std::string weights = path + "/model.safetensors";
  const std::string good = read_all(weights);
  write_all(weights, good + "x");
  EXPECT_EQ(message_of<DataError>([&] { LoadedCheckpoint{path}; }),
            fmt::format("'{}' is damaged: it has {} bytes, expected {}", weights, good.size() + 1,
                        good.size()));
  std::string flipped = good;
  flipped.back() ^= 1;
  write_all(weights, flipped);
  EXPECT_EQ(message_of<DataError>([&] { LoadedCheckpoint{path}; }),
            fmt::format("'{}' is damaged: its XXH3 checksum is {}, expected {}", weights,
                        checksum_of(std::as_bytes(std::span(flipped))),
                        checksum_of(std::as_bytes(std::span(good)))));
}

TEST(Checkpoint, MissingFilesAreNamed) {
  const MemoryFolder temp;
  const std::string path = SampleTraining(10).save_cut(temp / "c");
  for (const std::string& name : names_in(path)) {
    fs::rename(path + "/" + name, temp / "aside");
    EXPECT_EQ(message_of<DataError>([&] { LoadedCheckpoint{path}; }),
              fmt::format("cannot read '{}/{}': open: No such file or directory", path, name));
    fs::rename(temp / "aside", path + "/" + name);
  }
  EXPECT_THAT(message_of<DataError>([&] { LoadedCheckpoint{temp / "nowhere"}; }),
              HasSubstr("nowhere/state.json"));
}

TEST(FindLatestCheckpoint, FallsBackToTheMostSteps) {
  const MemoryFolder temp;
  const std::string folder = temp / "c";
  EXPECT_EQ(find_latest_checkpoint(folder), std::nullopt);
  fs::create_directory(folder);
  EXPECT_EQ(find_latest_checkpoint(folder), std::nullopt);
  SampleTraining(123'456'789).save(folder);
  SampleTraining(20).save(folder);
  EXPECT_EQ(find_latest_checkpoint(folder), folder + "/step_00000020");
  for (const char* content : {"", "step_00000021\n", "step_00000020", "../x\n", "\xff\n"}) {
    write_all(folder + "/latest", content);
    EXPECT_EQ(find_latest_checkpoint(folder), folder + "/step_123456789") << content;
  }
  fs::remove(folder + "/latest");
  EXPECT_EQ(find_latest_checkpoint(folder), folder + "/step_123456789");
}

TEST(FindLatestCheckpoint, IgnoresWhatIsNotACheckpoint) {
  const MemoryFolder temp;
  const std::string folder = temp / "c";
  for (const char* name : {".step_00000009.tmp-1-0", ".step_00000008.trash-1-0", "step_7",
                           "step_0000000x", "step_000000011", "step_-0000001", "other"}) {
    fs::create_directories(folder + "/" + name);
  }
  write_all(folder + "/step_00000005", "a file");
  EXPECT_EQ(find_latest_checkpoint(folder), std::nullopt);
  EXPECT_THAT(message_of<DataError>([&] { find_latest_checkpoint(folder + "/step_00000005"); }),
              HasSubstr("cannot read folder"));
}

TEST(Checkpoint, RemovesLeftoversOfTheDeadOnly) {
  const MemoryFolder temp;
  const std::string folder = temp / "c";
  const pid_t dead = ::fork();
  if (dead == 0) {
    ::_exit(0);
  }
  ::waitpid(dead, nullptr, 0);
  const std::string alive = fmt::format(".step_00000003.tmp-{}-0", ::getppid());
  for (const std::string& name : {alive, fmt::format(".step_00000001.tmp-{}-0", dead),
                                  fmt::format(".step_00000001.trash-{}-0", dead),
                                  fmt::format(".step_00000002.tmp-{}-4", ::getpid())}) {
    fs::create_directories(folder + "/" + name + "/content");
  }
  write_all(folder + fmt::format("/latest.{}-0.tmp", dead), "half");
  write_all(folder + "/.hidden", "of somebody else");
  SampleTraining(4).save(folder);
  EXPECT_THAT(names_in(folder), ElementsAre(".hidden", alive, "latest", "step_00000004"));
}

}  // namespace
}  // namespace braid
