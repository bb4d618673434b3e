#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "base/file.h"
#include "parallel/schedule_table.h"
#include "support/source_path.h"

namespace braid {
namespace {

/// The schedule that the first line of a picture names: "1f1b P=4 V=1 M=5".
ScheduleOptions named_schedule(const std::string& words) {
  char name[32] = "";
  int ranks = 0;
  int stages = 0;
  int microbatches = 0;
  EXPECT_EQ(std::sscanf(words.c_str(), "%31s P=%d V=%d M=%d", name, &ranks, &stages, &microbatches),
            4)
      << words;
  return {.kind = schedule_kind(name),
          .num_ranks = ranks,
          .virtual_stages = stages,
          .num_microbatches = microbatches};
}

TEST(PipelineDoc, PicturesAreTheSchedules) {
  const std::string page = read_text_file(source_path("docs/pipeline.md"), 1 << 20);
  const std::string fence = "```schedule ";
  int pictures = 0;
  for (size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at + 1)) {
    const size_t begin = page.find('\n', at) + 1;
    const ScheduleOptions options =
        named_schedule(page.substr(at + fence.size(), begin - 1 - at - fence.size()));
    EXPECT_EQ(page.substr(begin, page.find("```", begin) - begin),
              schedule_table(time_schedules(options, make_schedules(options))));
    ++pictures;
  }
  EXPECT_EQ(pictures, 6);
}

}  // namespace
}  // namespace braid
