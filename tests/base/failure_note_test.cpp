#include "base/failure_note.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

TEST(FailureNote, KeepsTheFirst) {
  // The only test of this process that notes one.
  EXPECT_EQ(noted_failure(), std::nullopt);
  note_failure("the cause");
  note_failure("what came of it");
  EXPECT_EQ(noted_failure(), "the cause");
}

}  // namespace
}  // namespace braid
