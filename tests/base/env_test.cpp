#include "base/env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/errors.h"
#include "support/source_path.h"

namespace braid {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

EnvLookup lookup_in(std::map<std::string, std::string> values) {
  return [values](std::string_view name) -> std::optional<std::string> {
    const auto found = values.find(std::string(name));
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path);
  EXPECT_TRUE(stream) << path;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::string error_of(const std::string& name, const std::string& value) {
  try {
    read_debug_options(lookup_in({{name, value}}));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Env, UnsetAndEmptyAreTheDefaults) {
  for (const std::string value : {"unset", ""}) {
    std::map<std::string, std::string> values;
    for (const EnvVariable& variable : env_variables()) {
      if (value.empty()) {
        values[std::string(variable.name)] = value;
      }
    }
    const DebugOptions options = read_debug_options(lookup_in(values));
    EXPECT_EQ(options.dump_program_folder, "");
    EXPECT_TRUE(options.disabled_passes.empty());
    EXPECT_EQ(options.verify, std::nullopt);
    EXPECT_EQ(options.trace, std::nullopt);
    EXPECT_FALSE(options.sync_tasks);
  }
}

TEST(Env, ReadsEveryVariable) {
  const DebugOptions options = read_debug_options(lookup_in({{"BRAID_DUMP_PROGRAM", "/tmp/dump"},
                                                             {"BRAID_DISABLE_PASSES", "a, b"},
                                                             {"BRAID_VERIFY", "0"},
                                                             {"BRAID_TRACE", "1"},
                                                             {"BRAID_SYNC_TASKS", "1"}}));
  EXPECT_EQ(options.dump_program_folder, "/tmp/dump");
  EXPECT_THAT(options.disabled_passes, ElementsAre("a", "b"));
  EXPECT_EQ(options.verify, false);
  EXPECT_EQ(options.trace, true);
  EXPECT_TRUE(options.sync_tasks);
}

TEST(Env, RefusesOtherValues) {
  EXPECT_EQ(error_of("BRAID_VERIFY", "yes"),
            "BRAID_VERIFY = \"yes\": allowed values are 0 and 1; unset it for the default");
  EXPECT_THAT(error_of("BRAID_TRACE", "2"), HasSubstr("BRAID_TRACE = \"2\": allowed values"));
  EXPECT_THAT(error_of("BRAID_DISABLE_PASSES", "a,,b"), HasSubstr("has an empty name"));
}

TEST(Env, ProcessEnvironmentSeesWhatIsSet) {
  EXPECT_EQ(process_environment()("BRAID_SURELY_NOT_SET"), std::nullopt);
  EXPECT_NE(process_environment()("PATH"), std::nullopt);
}

TEST(Env, DocumentListsExactlyTheTable) {
  std::string table;
  for (const EnvVariable& variable : env_variables()) {
    table += fmt::format("| `{}` | {} | {} |\n", variable.name, variable.value, variable.doc);
  }
  const std::string document = read_file(source_path("docs/env.md"));
  const std::string rule = "| --- | --- | --- |\n";
  ASSERT_NE(document.find(rule), std::string::npos);
  EXPECT_EQ(document.substr(document.find(rule) + rule.size()), table);
}

/// A library's own variables may be looked at where the library is set up; ours have one reader.
bool reads_our_variables(const std::string& source) {
  if (source.find("getenv(\"") != std::string::npos) {
    return true;
  }
  for (const EnvVariable& variable : env_variables()) {
    if (source.find(fmt::format("\"{}\"", variable.name)) != std::string::npos) {
      return true;
    }
  }
  return false;
}

TEST(Env, NoOtherFileReadsOurVariables) {
  const std::filesystem::path sources = source_path("src");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(sources)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".cpp" || extension == ".h" || extension == ".cu" || extension == ".cuh") {
      EXPECT_EQ(reads_our_variables(read_file(entry.path())),
                entry.path() == sources / "base" / "env.cpp")
          << entry.path();
    }
  }
}

}  // namespace
}  // namespace braid
