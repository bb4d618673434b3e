#include "data/text_normalizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "data/utf8.h"

namespace braid {
namespace {

std::string normalized(const char* form, std::string_view text) {
  std::string buffer;
  return std::string(TextNormalizer({{"type", form}}, "test").normalize(text, buffer));
}

TEST(TextNormalizer, ComputesTheNormalForms) {
  const std::string composed = "\xC3\xA9 \xEF\xAC\x81";  // é, the ligature fi
  const std::string decomposed = "e\xCC\x81 \xEF\xAC\x81";
  EXPECT_EQ(normalized("NFC", decomposed), composed);
  EXPECT_EQ(normalized("NFD", composed), decomposed);
  EXPECT_EQ(normalized("NFKC", decomposed), "\xC3\xA9 fi");
  EXPECT_EQ(normalized("NFKD", composed), "e\xCC\x81 fi");
  EXPECT_EQ(normalized("NFC", "\xE1\x84\x80\xE1\x85\xA1"), "\xEA\xB0\x80");  // Hangul
  std::string buffer;
  const TextNormalizer both(
      {{"type", "Sequence"}, {"normalizers", {{{"type", "NFD"}}, {{"type", "NFC"}}}}}, "test");
  EXPECT_EQ(both.normalize(decomposed, buffer), composed);
  EXPECT_EQ(both.describe(), "NFD, NFC");
}

// U+07FD, of Unicode 11, would go behind U+0345 and in front of U+0301 by its class; after it, a
// mark has nothing to compose with.
TEST(TextNormalizer, LeavesMarksThatTheLibraryDoesNotKnow) {
  EXPECT_EQ(normalized("NFC", "e\xDF\xBD\xCC\x81"), "e\xDF\xBD\xCC\x81");
  EXPECT_EQ(normalized("NFC", "e\xCC\x81\xDF\xBD"), "\xC3\xA9\xDF\xBD");
}

// The texts that are not looked at closely: with what may come before and after.
TEST(TextNormalizer, TakesNoTextForNormalThatIsNot) {
  const TextNormalizer nfc({{"type", "NFC"}}, "test");
  std::string quick;
  std::string slow;
  for (uint32_t c = 1; c < 0x20000; ++c) {
    if (c >= 0xD800 && c < 0xE000) {
      continue;
    }
    std::string text = "e";
    append_utf8(text, c);
    const std::string_view alone = nfc.normalize(text, quick);
    // U+0344 is not common: with it, all of the text is looked at.
    const std::string_view whole = nfc.normalize(text + "q\xCD\x84", slow);
    ASSERT_EQ(whole, std::string(alone) + "q\xCC\x88\xCC\x81") << c;
  }
}

}  // namespace
}  // namespace braid
