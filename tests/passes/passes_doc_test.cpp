#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "ir/text.h"
#include "ir/verify.h"
#include "ops/op.h"
#include "passes/pipeline.h"
#include "passes/streams/insert_events.h"
#include "support/source_path.h"

namespace braid {
namespace {

std::vector<std::string> lines_of(const std::string& document) {
  const std::string path = source_path("docs/" + document);
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line);
  }
  return lines;
}

/// What stands in the code block that starts with "```program".
std::string program_in(const std::string& document) {
  std::string text;
  bool inside = false;
  for (const std::string& line : lines_of(document)) {
    if (inside && line == "```") {
      return text;
    }
    if (inside) {
      text += line + "\n";
    }
    inside = inside || line == "```program";
  }
  ADD_FAILURE() << "docs/" << document << " has no program";
  return text;
}

TEST(PassesDoc, HasASectionForEachPassInOrder) {
  std::vector<std::string> documented;
  for (const std::string& line : lines_of("passes.md")) {
    if (line.starts_with("### `") && line.ends_with('`')) {
      documented.push_back(line.substr(5, line.size() - 6));
    }
  }
  std::vector<std::string> expected;
  for (const Pass& pass : default_pipeline()) {
    expected.emplace_back(pass.name);
  }
  EXPECT_EQ(documented, expected);
}

TEST(ProgramDoc, ShowsAProgramThatIsPrintedTheSameAndIsGood) {
  const std::string text = program_in("program.md");
  const Program program = parse_program(text);
  EXPECT_EQ(print_program(program), text);
  EXPECT_THAT(verify(program), testing::IsEmpty());
  for (const OpSpec& spec : program.specs.all()) {
    EXPECT_NO_THROW(check_spec(spec));
  }
}

TEST(ProgramDoc, ShowsTheEventsThatInsertEventsGives) {
  const Program program = parse_program(program_in("program.md"));
  EXPECT_EQ(insert_events(program).program, program);
}

}  // namespace
}  // namespace braid
