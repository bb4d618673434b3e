#include "train/training_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/wires.h"

namespace braid {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(TrainingSetup, ProcessesOfAHostAreThoseThatSayTheSameName) {
  const std::vector<std::string> hosts = {"a", "b", "a", "b"};
  LocalProcesses processes(4);
  std::vector<std::vector<int>> found(4);
  const std::vector<std::string> errors = on_threads(4, [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    found[index] = processes_of_host(processes[rank], hosts[index]);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(found, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(0, 2),
                                 ElementsAre(1, 3)));
}

}  // namespace
}  // namespace braid
