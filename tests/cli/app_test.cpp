#include "cli/app.h"

#include <sstream>

#include "cli/cli_fixture.h"
#include "config/fields.h"

namespace braid {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class App : public Cli {
 protected:
  /// The commands, as `braid --help` lists them.
  Words commands() const {
    const std::string help = output_of({"--help"});
    std::istringstream lines(help.substr(help.find("Subcommands:")));
    Words names;
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line) && line.starts_with("  ")) {
      names.push_back(line.substr(2, line.find(' ', 2) - 2));
    }
    return names;
  }
};

TEST_F(App, HelpAndVersion) {
  EXPECT_THAT(output_of({"--help"}), HasSubstr("Exit status"));
  EXPECT_THAT(output_of({"--version"}),
              ::testing::MatchesRegex("braid [0-9]+[.][0-9]+[.][0-9]+, build [0-9a-f]{40}\n"));
  EXPECT_THAT(commands(), ::testing::IsSupersetOf({"train", "plan", "tokenize", "generate",
                                                   "inspect", "passes", "doctor", "completion"}));
}

TEST_F(App, HelpOfEachCommandExplainsEachOption) {
  for (const std::string& command : commands()) {
    const std::string help = output_of({command, "--help"});
    EXPECT_THAT(help, HasSubstr("Usage: braid " + command));
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("  -")) {
        // The description stands after two blanks, or on the next line where the name is long.
        std::string description =
            line.find("  ", 4) == std::string::npos ? "" : line.substr(line.find("  ", 4));
        if (description.empty()) {
          std::getline(lines, description);
        }
        EXPECT_GT(description.find_last_not_of(' ') - description.find_first_not_of(' '), 10u)
            << command << ": " << line;
      }
    }
  }
}

TEST_F(App, HelpConfigListsEveryKey) {
  for (const char* command : {"train", "plan"}) {
    const std::string help = output_of({command, "--help-config"});
    for (const Field& field : config_fields()) {
      EXPECT_THAT(help, HasSubstr("\n  " + std::string(field.name) + " = ")) << command;
      EXPECT_THAT(help, HasSubstr(std::string(field.doc))) << command;
    }
  }
}

TEST_F(App, NoArgumentsShowUsage) {
  const ChildResult result = braid({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("Usage: braid"));
}

TEST_F(App, UnknownWordsAreNamedWithTheNearest) {
  EXPECT_EQ(error_of({"trian", "run.toml"}, 2),
            "unknown command \"trian\"; did you mean \"train\"?; see braid --help");
  EXPECT_EQ(error_of({"fly"}, 2), "unknown command \"fly\"; see braid --help");
  EXPECT_EQ(error_of({"--versoin"}, 2),
            "unknown option \"--versoin\"; did you mean \"--version\"?; see braid --help");
  EXPECT_EQ(error_of({"train", "--hlep"}, 2),
            "unknown option \"--hlep\"; did you mean \"--help\"?; see braid train --help");
  EXPECT_EQ(error_of({"generate", "x", "--seeds=3"}, 2),
            "unknown option \"--seeds\"; did you mean \"--seed\"?; see braid generate --help");
  EXPECT_EQ(error_of({"passes", "now"}, 2), "unexpected argument \"now\"; see braid passes --help");
}

TEST_F(App, MissingAndWrongOptionsAreOneLine) {
  EXPECT_THAT(error_of({"train"}, 2), AllOf(HasSubstr("config"), EndsWith("braid train --help")));
  EXPECT_THAT(error_of({"train", "run.toml", "--set"}, 2), HasSubstr("--set"));
  EXPECT_THAT(error_of({"tokenize", "--input", "x"}, 2), HasSubstr("--output"));
  EXPECT_EQ(error_of({"generate", "x", "--tokens", "-1"}, 2),
            "--tokens: -1 is not an integer of at least 1; see braid generate --help");
  EXPECT_EQ(error_of({"generate", "x", "--seed", "-1"}, 2),
            "--seed: -1 is not an integer of at least 0; see braid generate --help");
  EXPECT_EQ(error_of({"generate", "x", "--temperature", "nan"}, 2),
            "--temperature: nan is not a number from 0 to 100; see braid generate --help");
  EXPECT_THAT(error_of({"completion", "tcsh"}, 2), HasSubstr("{bash,zsh,fish}"));
  EXPECT_THAT(error_of({"train", "run.toml", "--stop-after", "0"}, 2), HasSubstr("at least 1"));
}

TEST_F(App, NamesCannotMoveTheCursor) {
  const std::string name =
      "a\n\x1b]0;title\x07\xC2\x9B"
      "2J";
  const std::string shown = "a\\x0A\\x1B]0;title\\x07\\xC2\\x9B2J";
  EXPECT_THAT(error_of({"report", name}, 1), HasSubstr(shown));
  EXPECT_THAT(error_of({"train", name}, 2), HasSubstr(shown));
  write("text", "some text\n");
  EXPECT_THAT(output_of({"tokenize", "--input", path("text"), "--output", path("\x1b[2J"),
                         "--tokenizer", "bytes"}),
              HasSubstr("\\x1B[2J.bin"));
}

TEST_F(App, OutputThatCannotBeWrittenIsAnError) {
  for (const Words& words : {Words{"passes"}, Words{"--help"}, Words{"doctor"}}) {
    EXPECT_THAT(error_of(words, 1, {.stdout_path = "/dev/full"}),
                StartsWith("cannot write standard output: No space left"));
    EXPECT_THAT(error_of(words, 1, {.close_stdout = true}),
                StartsWith("cannot write standard output"));
  }
}

}  // namespace
}  // namespace braid
