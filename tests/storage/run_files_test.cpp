// The files of a run, beside its checkpoints, on storage that fails: the power is lost at any
// moment, and each call fails once. Each file is then what one writer wrote, or an error names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/samples.h"
#include "checkpoint/simulated_disk.h"
#include "checkpoint/watched_storage.h"
#include "data/indexed_dataset.h"
#include "hugging_face/tensor_folder.h"
#include "report/run_file.h"
#include "state/import_weights.h"
#include "support/hugging_face_model.h"
#include "support/tensor_bytes.h"
#include "train/run_log.h"

namespace braid {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMaxFileBytes = 1 << 20;

/// A writer of files, and what must hold about them whenever it was stopped.
struct Case {
  std::string name;
  /// Writes below a folder; calls `done` whenever a version is complete.
  std::function<void(const std::string& folder, const std::function<void()>& done)> write;
  /// `num_done` versions are complete; of the next one, any part may be there.
  std::function<void(const std::string& folder, int64_t num_done)> check;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

/// A pair of token files that is replaced: all versions have the same sizes.
Case token_files() {
  constexpr int64_t kVersions = 3;
  const auto tokens_of = [](int64_t version) {
    std::vector<int32_t> tokens(50);
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>(1000 * version + static_cast<int64_t>(i));
    }
    return tokens;
  };
  const auto write = [=](const std::string& folder, const std::function<void()>& done) {
    for (int64_t version = 0; version < kVersions; ++version) {
      IndexedDatasetWriter writer(folder + "/tokens", TokenType::kU16);
      writer.add_sequence(tokens_of(version));
      writer.end_document();
      writer.commit();
      done();
    }
  };
  const auto check = [=](const std::string& folder, int64_t num_done) {
    std::unique_ptr<IndexedDataset> dataset;
    try {
      dataset = std::make_unique<IndexedDataset>(folder + "/tokens");
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr(folder + "/tokens"));
      EXPECT_LT(num_done, kVersions) << error.what();  // the pair is being replaced
      return;
    }
    dataset->verify_tokens();
    std::vector<int32_t> tokens(50);
    dataset->read(0, 0, tokens);
    EXPECT_TRUE((num_done > 0 && tokens == tokens_of(num_done - 1)) ||
                tokens == tokens_of(num_done));
  };
  return {"token_files", write, check};
}

StepRecord record_of(int64_t step) {
  return {.step = step, .loss = 100.0 - static_cast<double>(step), .skipped_steps = step};
}

RunLogOptions log_options(const std::string& folder, int64_t first_step) {
  return {.folder = folder, .tensorboard = false, .first_step = first_step, .num_steps = 20};
}

/// A run that saves a checkpoint after each of two steps, stops two steps later, and resumes.
Case metrics() {
  constexpr std::array<int64_t, 3> kSaved = {0, 4, 8};
  const auto write = [=](const std::string& folder, const std::function<void()>& done) {
    for (size_t process = 0; process + 1 < kSaved.size(); ++process) {
      RunLog log(log_options(folder, kSaved[process] + 1));
      for (int64_t step = kSaved[process] + 1; step <= kSaved[process + 1] + 2; ++step) {
        log.step(record_of(step));
        log.evaluation({.step = step, .loss = 200.0 - static_cast<double>(step)});
        if (step == kSaved[process + 1]) {
          log.sync();
          done();
        }
      }
    }
  };
  const auto check = [=](const std::string& folder, int64_t num_done) {
    const Metrics found = read_metrics(folder + "/metrics.jsonl");
    for (const StepRecord& record : found.steps) {
      EXPECT_EQ(record.loss, record_of(record.step).loss);
      EXPECT_EQ(record.skipped_steps, record.step);
    }
    const int64_t saved = kSaved.at(static_cast<size_t>(num_done));
    RunLog log(log_options(folder, saved + 1));
    ASSERT_EQ(log.metrics().steps.size(), static_cast<size_t>(saved));
    ASSERT_EQ(log.metrics().evaluations.size(), static_cast<size_t>(saved));
    for (int64_t step = 1; step <= saved; ++step) {
      EXPECT_EQ(log.metrics().steps[static_cast<size_t>(step - 1)].step, step);
    }
    log.step(record_of(saved + 1));
    const Metrics more = read_metrics(folder + "/metrics.jsonl");
    EXPECT_EQ(more.num_damaged_lines, 0);
    EXPECT_EQ(more.steps.size(), static_cast<size_t>(saved) + 1);
  };
  return {"metrics", write, check};
}

/// What a run, `braid report`, `braid calibrate --out` and `braid plan --save-config` replace as a
/// whole.
Case replaced_files() {
  static constexpr std::array kNames = {"config.toml", "report.json", "report.html",
                                        "profile.json"};
  const auto content_of = [](const std::string& name, int64_t version) {
    return name + std::to_string(version) + std::string(static_cast<size_t>(300 * version), 'x');
  };
  const auto write = [=](const std::string& folder, const std::function<void()>& done) {
    for (int64_t version = 0; version < 3; ++version) {
      for (const std::string name : kNames) {
        if (name == kRunReportFile) {
          save_run_report(folder + "/" + name, {.title = "", .json = content_of(name, version)});
        } else {
          write_file_atomically(folder + "/" + name, content_of(name, version));
        }
      }
      done();
    }
  };
  const auto check = [=](const std::string& folder, int64_t num_done) {
    for (const std::string name : kNames) {
      const std::string path = folder + "/" + name;
      if (!std::filesystem::exists(path)) {
        EXPECT_EQ(num_done, 0);
        continue;
      }
      std::string text = read_text_file(path, kMaxFileBytes);
      text.erase(text.find_last_not_of('\n') + 1);
      EXPECT_TRUE((num_done > 0 && text == content_of(name, num_done - 1)) ||
                  text == content_of(name, num_done))
          << name << " of version " << num_done << ": " << text.size() << " bytes";
    }
  };
  return {"replaced_files", write, check};
}

/// A Hugging Face folder of two files and their index.
Case exported_folder() {
  const std::vector<TensorInfo> tensors = {{"a", DType::kU8, {40}}, {"b", DType::kU8, {30}}};
  const auto bytes_of = [](const TensorInfo& tensor) {
    return std::vector<std::byte>(static_cast<size_t>(tensor.shape[0]),
                                  static_cast<std::byte>(tensor.name[0]));
  };
  const auto write = [=](const std::string& folder, const std::function<void()>& done) {
    HfFolderWriter writer(folder + "/out", tensors, 40);
    for (const TensorInfo& tensor : tensors) {
      writer.write(bytes_of(tensor));
      writer.end_tensor();
    }
    writer.finish("the configuration");
    done();
  };
  const auto check = [=](const std::string& folder, int64_t num_done) {
    if (!std::filesystem::exists(folder + "/out")) {
      EXPECT_EQ(num_done, 0);
      return;
    }
    const HfTensorFolder files(folder + "/out");
    EXPECT_EQ(files.num_files(), 2u);
    for (const TensorInfo& tensor : tensors) {
      const auto place = files.find(tensor.name);
      ASSERT_TRUE(place);
      EXPECT_EQ(tensor_bytes(*place->file, *place->entry), bytes_of(tensor));
    }
    EXPECT_EQ(read_text_file(folder + "/out/config.json", kMaxFileBytes), "the configuration");
  };
  return {"exported_folder", write, check};
}

/// The checkpoint of step 0 that `braid import` writes.
Case imported_model() {
  const auto source = std::make_shared<TempFolder>();
  TinyHfModel::make_llama(true).write(*source / "hf", DType::kBF16);
  const auto write = [=](const std::string& folder, const std::function<void()>& done) {
    import_weights(*source / "hf", folder + "/imported");
    done();
  };
  const auto check = [=](const std::string& folder, int64_t num_done) {
    const std::optional<std::string> latest = find_latest_checkpoint(folder + "/imported");
    if (!latest) {
      EXPECT_EQ(num_done, 0);
      return;
    }
    const LoadedCheckpoint loaded(*latest);  // compares all checksums
    EXPECT_EQ(loaded.state().step, 0);
    EXPECT_NE(loaded.find("embedding.tokens"), nullptr);
  };
  return {"imported_model", write, check};
}

class RunFiles : public testing::TestWithParam<Case> {};

TEST_P(RunFiles, SurviveALossOfPowerAtAnyMoment) {
  constexpr int kLosses = 1000;
  const MemoryFolder temp;
  WatchedStorage storage(temp.path().string());
  GetParam().write(temp.path().string(), [&] { storage.mark("done"); });
  const std::vector<StorageCall> log = storage.log();
  std::mt19937 random(1);
  std::vector<size_t> moments(kLosses);
  std::ranges::generate(moments, [&] { return random() % (log.size() + 1); });
  std::ranges::sort(moments);
  SimulatedDisk disk(temp.path().string());
  size_t num_calls = 0;
  int64_t num_done = 0;
  for (const size_t moment : moments) {
    for (; num_calls < moment; ++num_calls) {
      disk.add(log[num_calls]);
      num_done += log[num_calls].kind == StorageCallKind::kMark ? 1 : 0;
    }
    const MemoryFolder after;
    disk.lose_power(random, after.path().string());
    SCOPED_TRACE("power loss after call " + std::to_string(moment));
    GetParam().check(after.path().string(), num_done);
    ASSERT_FALSE(HasFailure());
  }
}

TEST_P(RunFiles, SurviveAFaultOfEachCall) {
  for (const StorageFault fault :
       {StorageFault::kInputOutputError, StorageFault::kNoSpace, StorageFault::kInterrupted}) {
    std::string failed = "the first";
    for (int64_t call = 0; !failed.empty(); ++call) {
      const MemoryFolder temp;
      int64_t num_done = 0;
      std::string error;
      {
        WatchedStorage storage(temp.path().string());
        storage.fail(call, fault);
        try {
          GetParam().write(temp.path().string(), [&] { ++num_done; });
        } catch (const DataError& caught) {
          error = caught.what();
          EXPECT_THAT(error, HasSubstr(temp.path().string()));
        }
        failed = storage.failed();
      }
      SCOPED_TRACE("fault of call " + std::to_string(call) + ": " + failed);
      EXPECT_TRUE(!failed.empty() || error.empty()) << error;
      EXPECT_TRUE(fault != StorageFault::kInterrupted || error.empty()) << error;
      GetParam().check(temp.path().string(), num_done);
      ASSERT_FALSE(HasFailure());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RunFiles,
                         testing::Values(token_files(), metrics(), replaced_files(),
                                         exported_folder(), imported_model()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace braid
