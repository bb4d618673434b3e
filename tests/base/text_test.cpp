#include "base/text.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>

namespace braid {
namespace {

constexpr std::array<std::string_view, 5> kKeys = {"steps", "seed", "warmup_steps", "learning_rate",
                                                   "run_folder"};

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("steps", "setps"), 1) << "a swap of neighbours is one edit";
  EXPECT_EQ(edit_distance("ca", "abc"), 3) << "optimal string alignment edits no text twice";
}

TEST(EditDistance, IsSymmetric) {
  for (const std::string_view a : kKeys) {
    for (const std::string_view b : kKeys) {
      EXPECT_EQ(edit_distance(a, b), edit_distance(b, a)) << a << " " << b;
    }
  }
}

TEST(NearestName, FindsTheLikelyMeaning) {
  EXPECT_EQ(nearest_name("step", kKeys), "steps");
  EXPECT_EQ(nearest_name("Learning-Rate", kKeys), "learning_rate");
  EXPECT_EQ(nearest_name("warm_up_steps", kKeys), "warmup_steps");
  EXPECT_EQ(nearest_name("sede", kKeys), "seed");
}

TEST(NearestName, FindsPartsOfNames) {
  EXPECT_EQ(nearest_name("warmup", kKeys), "warmup_steps");
  EXPECT_EQ(nearest_name("max_train_steps", kKeys), "steps");
  EXPECT_EQ(nearest_name("_", kKeys), std::nullopt);
}

TEST(NearestName, IsSilentWhereNothingIsNear) {
  EXPECT_EQ(nearest_name("banana", kKeys), std::nullopt);
  EXPECT_EQ(nearest_name("", kKeys), std::nullopt);
  EXPECT_EQ(nearest_name(std::string(1 << 20, 'x'), kKeys), std::nullopt);
  EXPECT_EQ(nearest_name("steps", {}), std::nullopt);
}

TEST(NearestName, PrefersTheFirstOfEquals) {
  constexpr std::array<std::string_view, 2> kTwo = {"beta1", "beta2"};
  EXPECT_EQ(nearest_name("beta", kTwo), "beta1");
}

TEST(DidYouMean, ReadsAsTheEndOfAMessage) {
  EXPECT_EQ(did_you_mean("stepz", kKeys), "; did you mean \"steps\"?");
  EXPECT_EQ(did_you_mean("banana", kKeys), "");
}

TEST(Join, PutsSeparatorsBetween) {
  EXPECT_EQ(join(std::vector<std::string>{}, ", "), "");
  EXPECT_EQ(join(std::vector<std::string>{"a"}, ", "), "a");
  EXPECT_EQ(join(std::vector<std::string_view>{"a", "", "c"}, ", "), "a, , c");
}

TEST(SplitText, TrimsPiecesAndKeepsEmptyOnes) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(split_text("", ','), Pieces{});
  EXPECT_EQ(split_text("a", ','), Pieces{"a"});
  EXPECT_EQ(split_text(" a , b\t,", ','), (Pieces{"a", "b", ""}));
  EXPECT_EQ(split_text(",", ','), (Pieces{"", ""}));
}

TEST(Trim, RemovesBlanksAtBothEnds) {
  EXPECT_EQ(trim(" \ta b\r\n"), "a b");
  EXPECT_EQ(trim(" \t "), "");
  EXPECT_EQ(trim(""), "");
}

TEST(IsPrintable, RefusesControlCharactersAndBadUtf8) {
  EXPECT_TRUE(is_printable(""));
  EXPECT_TRUE(is_printable("a \xC3\xBC \xF0\x9F\x8E\x89"));
  EXPECT_FALSE(is_printable("a\nb"));
  EXPECT_FALSE(is_printable(std::string_view("\0", 1)));
  EXPECT_FALSE(is_printable("\x7F"));
  EXPECT_FALSE(is_printable("\xC2\x9B")) << "CSI in one character";
  EXPECT_FALSE(is_printable("\xFF"));
  EXPECT_FALSE(is_printable("\xF4\x90\x80\x80")) << "past U+10FFFF";
}

TEST(Quote, IsOneLineWhateverTheBytes) {
  EXPECT_EQ(quote("plain"), "\"plain\"");
  EXPECT_EQ(quote("a\"b\\c"), "\"a\\\"b\\\\c\"");
  EXPECT_EQ(quote("a\nb\x7f"), "\"a\\u000Ab\\u007F\"");
  EXPECT_EQ(quote("gr\xC3\xBC\xC3\x9F"), "\"gr\xC3\xBC\xC3\x9F\"") << "UTF-8 stays";
  EXPECT_EQ(quote("a\xFFz"), "\"a\\xFFz\"");
  EXPECT_EQ(quote("\xC0\x80"), "\"\\xC0\\x80\"") << "overlong";
  EXPECT_EQ(quote("\xED\xA0\x80"), "\"\\xED\\xA0\\x80\"") << "surrogate";
  EXPECT_EQ(quote("\xE2\x82"), "\"\\xE2\\x82\"") << "cut short";
}

TEST(Quote, EscapesWhatTerminalsObey) {
  EXPECT_EQ(quote("\x1b[31m"), "\"\\u001B[31m\"");
  EXPECT_EQ(quote("\xC2\x9B"), "\"\\u009B\"") << "another form of escape and [";
  EXPECT_EQ(quote("a\xE2\x80\xAEz"), "\"a\\u202Ez\"") << "right to left from here on";
  EXPECT_EQ(quote("a\xE2\x80\xA8z"), "\"a\\u2028z\"") << "a line separator";
  EXPECT_EQ(quote("\xC2\xA0\xE2\x80\xA6"), "\"\xC2\xA0\xE2\x80\xA6\"") << "neighbours stay";
  EXPECT_FALSE(is_printable("\xC2\x9B"));
  EXPECT_FALSE(is_printable("\xE2\x81\xA6"));
}

TEST(Inert, ShowsControlBytesAndBadUtf8) {
  EXPECT_EQ(inert("a \xC3\xBC \xF0\x9F\x8E\x89\n\tb\\\"'"),
            "a \xC3\xBC \xF0\x9F\x8E\x89\n\tb\\\"'");
  EXPECT_EQ(inert("\x1b]0;title\x07"), "\\x1B]0;title\\x07");
  EXPECT_EQ(inert("one\rtwo\x7f"), "one\\x0Dtwo\\x7F");
  EXPECT_EQ(inert("\xC2\x9B"
                  "2J"),
            "\\xC2\\x9B2J");
  EXPECT_EQ(inert("\xE2\x80\xAE"), "\\xE2\\x80\\xAE");
  EXPECT_EQ(inert("\xff\xE2\x82"), "\\xFF\\xE2\\x82");
  EXPECT_EQ(inert(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(inert(""), "");
}

TEST(Inert, IsPrintableWhateverTheBytes) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    std::string text(random() % 40, ' ');
    for (char& c : text) {
      c = static_cast<char>(random());
    }
    const std::string shown = inert_line(text);
    EXPECT_TRUE(is_printable(shown)) << shown;
    EXPECT_EQ(inert_line(shown), shown);
    EXPECT_EQ(is_printable(text), shown == text);
  }
  EXPECT_EQ(inert_line("a\nb\t"), "a\\x0Ab\\x09");
}

TEST(Quote, CutsLongTextBetweenCharacters) {
  EXPECT_EQ(quote("abcdef", 3), "\"abc...\"");
  EXPECT_EQ(quote("abc", 3), "\"abc\"");
  EXPECT_EQ(quote("ab\xC3\xBC", 3), "\"ab...\"");
  EXPECT_EQ(printable("a \"b\" c:\\d", 100), "a \"b\" c:\\d");
  EXPECT_EQ(printable("\x1b[31mred\x07\xC2\x9B"
                      "1m\xFF",
                      100),
            "\\u001B[31mred\\u0007\\u009B1m\\xFF");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
}

TEST(FormatBytes, UsesBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes((1 << 20) - 1), "1.00 MiB") << "never 1024 KiB";
  EXPECT_EQ(format_bytes(int64_t{139} << 30), "139 GiB");
  EXPECT_EQ(format_bytes(-2048), "-2.00 KiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<int64_t>::max()), "8192 PiB");
}

TEST(ParseByteSize, TakesBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_byte_size("80GiB"), int64_t{80} << 30);
  EXPECT_EQ(parse_byte_size("80 GB"), 80'000'000'000);
  EXPECT_EQ(parse_byte_size("1.5 TiB"), int64_t{3} << 39);
  EXPECT_EQ(parse_byte_size("0.5KiB"), 512);
  EXPECT_EQ(parse_byte_size("3kB"), std::nullopt) << "no unit is small";
  EXPECT_EQ(parse_byte_size("12 B"), 12);
  EXPECT_EQ(parse_byte_size("0 MB"), 0);
  EXPECT_EQ(parse_byte_size("1 PB"), 1'000'000'000'000'000);
}

TEST(ParseByteSize, RefusesWhatIsNoSize) {
  for (const char* text : {"", "80", "GiB", "80 G", "80 GiBs", "80 iB", "-1 GiB", "nan GiB",
                           "1e30 GiB", "80 GiB x", "80  Xi"}) {
    EXPECT_EQ(parse_byte_size(text), std::nullopt) << text;
  }
}

TEST(FormatCount, UsesDecimalUnits) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(12'345), "12.3K");
  EXPECT_EQ(format_count(999'999), "1.00M");
  EXPECT_EQ(format_count(1'240'000'000), "1.24B");
  EXPECT_EQ(format_count(-1500), "-1.50K");
}

TEST(FormatDuration, UsesTheUnitThatReadsBest) {
  EXPECT_EQ(format_duration(0), "0 ns");
  EXPECT_EQ(format_duration(85e-9), "85 ns");
  EXPECT_EQ(format_duration(0.0012), "1.20 ms");
  EXPECT_EQ(format_duration(59.1), "59.1 s");
  EXPECT_EQ(format_duration(59.96), "1 min 00 s");
  EXPECT_EQ(format_duration(125), "2 min 05 s");
  EXPECT_EQ(format_duration(3 * 3600 + 7 * 60), "3 h 07 min");
  EXPECT_EQ(format_duration(52 * 3600), "2 d 04 h");
  EXPECT_EQ(format_duration(-1), "unknown");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "unknown");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "unknown");
}

}  // namespace
}  // namespace braid
