#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/temp_folder.h"
#include "cli/child_process.h"

namespace braid {

/// Far above what any call here takes on a busy machine: a test fails by it only if braid hangs.
constexpr std::chrono::seconds kPatience{120};

/// Sentences of a small grammar, a blank line after each few: something that can be learnt.
inline std::string small_corpus() {
  std::mt19937 random(3);
  const char* words[] = {"the cat", "a dog",   "my bird", "the fish", "sees",
                         "hears",   "quietly", "finds",   "likes",    "always"};
  std::string text;
  for (int i = 0; i < 900; ++i) {
    for (int word = 0; word < 6; ++word) {
      text += std::string(word == 0 ? "" : " ") + words[random() % 10];
    }
    text += i % 3 == 2 ? ".\n\n" : ".\n";
  }
  return text;
}

/// Starts the real `braid` in a folder of its own.
class Cli : public testing::Test {
 protected:
  using Words = std::vector<std::string>;

  std::string path(const std::string& name) const { return folder_ / name; }
  bool exists(const std::string& name) const { return std::filesystem::exists(path(name)); }
  std::string read(const std::string& name) const {
    return read_text_file(path(name), int64_t{1} << 30);
  }
  void write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    write_test_file(path(name), text);
  }

  /// The bytes of all tensor files of a checkpoint, one after the other by their names.
  std::string tensors_of(const std::string& checkpoint) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path(checkpoint))) {
      if (entry.path().extension() == ".safetensors") {
        names.push_back(entry.path().filename().string());
      }
    }
    std::sort(names.begin(), names.end());
    EXPECT_GE(names.size(), 2u) << checkpoint;
    std::string bytes;
    for (const std::string& name : names) {
      bytes += name + read(checkpoint + "/" + name);
    }
    return bytes;
  }

  static Words command(const Words& arguments) {
    Words words{BRAID_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return words;
  }

  ChildOptions in_folder(ChildOptions options = {}) const {
    options.folder = options.folder.empty() ? folder_.path().string() : path(options.folder);
    return options;
  }

  ChildResult braid(const Words& arguments, const ChildOptions& options = {}) const {
    ChildProcess process(command(arguments), in_folder(options));
    const ChildResult result = process.wait(kPatience);
    EXPECT_FALSE(result.timed_out) << testing::PrintToString(arguments);
    return result;
  }

  /// Runs a command that must succeed without a word on stderr, and returns its output.
  std::string output_of(const Words& arguments) const {
    const ChildResult result = braid(arguments);
    EXPECT_EQ(result.exit_code, 0) << testing::PrintToString(arguments) << result.err;
    EXPECT_EQ(result.err, "") << testing::PrintToString(arguments);
    return result.out;
  }

  /// Runs a command that must fail with this exit code and one line on stderr, and returns the
  /// line without "braid: " and its end.
  std::string error_of(const Words& arguments, int exit_code,
                       const ChildOptions& options = {}) const {
    const ChildResult result = braid(arguments, options);
    const std::string shown = testing::PrintToString(arguments) + "\n" + result.err;
    EXPECT_EQ(result.exit_code, exit_code) << shown;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << shown;
    const std::string prefix = "braid: ";
    EXPECT_TRUE(result.err.starts_with(prefix)) << shown;
    EXPECT_EQ(result.err.find(prefix, 1), std::string::npos) << "prefix twice: " << shown;
    return result.err.size() < prefix.size() + 1
               ? result.err
               : result.err.substr(prefix.size(), result.err.size() - prefix.size() - 1);
  }

  /// Whether the log shows at least that many steps.
  static auto has_steps(int64_t steps) {
    return [steps](const std::string& out) {
      int64_t found = 0;
      for (size_t at = out.find("  loss "); at != std::string::npos;
           at = out.find("  loss ", at + 1)) {
        ++found;
      }
      return found >= steps;
    };
  }

  /// corpus.txt, and run.toml, which trains a tiny model on it with two ranks.
  void write_run() const {
    write("corpus.txt", small_corpus());
    write("run.toml",
          "[model]\nlayers = 2\nwidth = 32\nheads = 2\n"
          "[train]\nsequence = 32\nmicrobatch = 2\nglobal_batch = 8\nsteps = 6\n"
          "[optimizer]\nlearning_rate = 3e-3\n"
          "[parallel]\nranks = 2\n"
          "[data]\ntrain = \"corpus.txt\"\nsplit = \"90,10,0\"\n"
          "[eval]\ninterval = 3\nbatches = 2\n"
          "[runtime]\nthreads = 1\n");
  }

  /// `braid train run.toml` with these keys.
  static Words train(const Words& settings, const Words& options = {}) {
    Words words{"train", "run.toml"};
    for (const std::string& setting : settings) {
      words.insert(words.end(), {"--set", setting});
    }
    words.insert(words.end(), options.begin(), options.end());
    return words;
  }

  TempFolder folder_;
};

}  // namespace braid
