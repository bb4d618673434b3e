#include <sstream>

#include "cli/cli_fixture.h"
#include "config/fields.h"

namespace braid {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class Completion : public Cli {
 protected:
  ChildResult run(const std::string& program, const Words& arguments) const {
    Words words{program};
    words.insert(words.end(), arguments.begin(), arguments.end());
    ChildProcess process(words, in_folder());
    return process.wait(kPatience);
  }

  /// The completions that bash offers for these words; the last one is being typed.
  Words offers(const Words& words) const {
    write("braid.bash", output_of({"completion", "bash"}));
    std::string quoted;
    for (const std::string& word : words) {
      quoted += " '" + word + "'";
    }
    write("complete.bash", "set -u\nsource braid.bash || exit 1\nCOMP_WORDS=(" + quoted +
                               ")\nCOMP_CWORD=" + std::to_string(words.size() - 1) +
                               "\n_braid\nif [ ${#COMPREPLY[@]} -gt 0 ]; then printf '%s\\n' "
                               "\"${COMPREPLY[@]}\"; fi\n");
    const ChildResult result = run("/bin/bash", {"--norc", "complete.bash"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    std::istringstream lines(result.out);
    Words found;
    for (std::string line; std::getline(lines, line);) {
      found.push_back(line);
    }
    return found;
  }
};

TEST_F(Completion, BashScriptIsValid) {
  write("braid.bash", output_of({"completion", "bash"}));
  const ChildResult result = run("/bin/bash", {"-n", "braid.bash"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

TEST_F(Completion, BashCompletesCommands) {
  EXPECT_THAT(offers({"braid", "t"}), ::testing::UnorderedElementsAre("train", "tokenize"));
  EXPECT_THAT(offers({"braid", ""}), Contains("doctor"));
  EXPECT_THAT(offers({"braid", "--v"}), ::testing::ElementsAre("--version"));
}

TEST_F(Completion, BashCompletesOptionsAndTheirChoices) {
  EXPECT_THAT(offers({"braid", "train", "--s"}),
              ::testing::UnorderedElementsAre("--set", "--stop-after"));
  EXPECT_THAT(offers({"braid", "generate", "--"}), Contains("--temperature"));
  EXPECT_THAT(offers({"braid", "tokenize", "--kind", ""}),
              ::testing::UnorderedElementsAre("bpe", "unigram"));
  EXPECT_THAT(offers({"braid", "completion", ""}),
              ::testing::UnorderedElementsAre("bash", "zsh", "fish"));
}

TEST_F(Completion, BashCompletesKeys) {
  EXPECT_THAT(offers({"braid", "train", "run.toml", "--set", "train.st"}),
              ::testing::ElementsAre("train.steps="));
  EXPECT_EQ(offers({"braid", "plan", "--set", ""}).size(), config_fields().size());
}

// Nothing is offered, and bash takes that for file names ("-o default").
TEST_F(Completion, BashLeavesFilesToTheShell) {
  EXPECT_TRUE(offers({"braid", "train", "ru"}).empty());
  EXPECT_TRUE(offers({"braid", "tokenize", "--input", "co"}).empty());
  EXPECT_THAT(output_of({"completion", "bash"}),
              HasSubstr("complete -o default -F _braid braid\n"));
}

class ShellSyntax : public Completion, public testing::WithParamInterface<const char*> {};

TEST_P(ShellSyntax, IsValid) {
  const std::string shell = GetParam();
  const std::string program = "/usr/bin/" + shell;
  if (!std::filesystem::exists(program)) {
    GTEST_SKIP() << shell << " is not installed";
  }
  write("script", output_of({"completion", shell}));
  const ChildResult result = run(program, {"-n", "script"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

// What can be seen without the shell: every quote that is not escaped is closed on its line, every
// command, option and key is there.
TEST_P(ShellSyntax, TextNamesEverything) {
  const std::string text = output_of({"completion", GetParam()});
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    int64_t quotes = std::count(line.begin(), line.end(), '\'');
    for (size_t at = line.find("\\'"); at != std::string::npos; at = line.find("\\'", at + 2)) {
      --quotes;
    }
    EXPECT_EQ(quotes % 2, 0) << line;
  }
  EXPECT_EQ(std::count(text.begin(), text.end(), '{'), std::count(text.begin(), text.end(), '}'));
  for (const char* word : {"train", "tokenize", "stop-after", "temperature", "bpe unigram"}) {
    EXPECT_THAT(text, HasSubstr(word));
  }
  for (const Field& field : config_fields()) {
    EXPECT_THAT(text, HasSubstr(full_name(field) + "="));
  }
}

INSTANTIATE_TEST_SUITE_P(Shells, ShellSyntax, testing::Values("zsh", "fish"),
                         [](const auto& shell) { return std::string(shell.param); });

}  // namespace
}  // namespace braid
