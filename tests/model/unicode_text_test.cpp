#include "model/tokenizer/unicode_text.h"

#include <gtest/gtest.h>

#include <ctime>

#include "model/core/errors.h"
#include "tests/model/scratch_folder.h"

namespace grpo::model {
namespace {

constexpr const char* kReplacement = "\xef\xbf\xbd";

TEST(UnicodeText, EveryCodePointPassesAsUtf8) {
  for (char32_t code_point = 0; code_point <= 0x10ffff; ++code_point) {
    if (code_point >= 0xd800 && code_point < 0xe000) continue;
    std::string text;
    append_utf8(text, code_point);
    const Utf8Step step = utf8_step(text, 0);
    ASSERT_EQ(step.status, Utf8Status::kValid) << static_cast<uint32_t>(code_point);
    ASSERT_EQ(step.length, text.size());
    ASSERT_EQ(code_point_at(text, 0), code_point);
    for (size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(utf8_step(text.substr(0, cut), 0).status, Utf8Status::kIncomplete);
    }
  }
}

TEST(UnicodeText, IllFormedBytesAreReplacedByLongestPrefixes) {
  // The example of the Unicode standard, table 3-8.
  EXPECT_EQ(replace_invalid_utf8("\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64"),
            std::string("a") + kReplacement + kReplacement + kReplacement + "b" + kReplacement +
                "c" + kReplacement + kReplacement + "d");
  // Overlong forms, surrogates and code points above the range: no byte begins a character.
  EXPECT_EQ(replace_invalid_utf8("\xc0\xaf"), std::string(kReplacement) + kReplacement);
  EXPECT_EQ(replace_invalid_utf8("\xed\xa0\x80"),
            std::string(kReplacement) + kReplacement + kReplacement);
  EXPECT_EQ(replace_invalid_utf8("\xf4\x90\x80\x80"),
            std::string(kReplacement) + kReplacement + kReplacement + kReplacement);
  EXPECT_EQ(replace_invalid_utf8("ok\xf0\x9f\x99"), std::string("ok") + kReplacement);
}

// A text may end there, but no byte that follows could make a character of it.
TEST(UnicodeText, NoTextEndsInsideWhatBeginsNoCharacter) {
  for (const char* text :
       {"\x80", "\xbf", "\xc0", "\xc1", "\xf5", "\xff", "\xed\xa0", "\xf4\x90"}) {
    const int first = static_cast<unsigned char>(text[0]);
    EXPECT_EQ(utf8_step(text, 0).status, Utf8Status::kInvalid) << first;
    EXPECT_EQ(utf8_step(text, 0).length, 1u) << first;
    EXPECT_EQ(code_point_at(text, 0), U'\uFFFD') << first;
  }
}

TEST(UnicodeText, CheckNamesTheFirstBadByte) {
  check_utf8("gr\xc3\xbc\xc3\x9f \xf0\x9f\x99\x82");
  expect_parts(message_of<DataError>([] { check_utf8("ab\xffz\xfe"); }), {"byte 0xff at offset 2"});
  expect_parts(message_of<DataError>([] { check_utf8("\xc3\xa9\xe2\x82"); }),
               {"byte 0xe2 at offset 2"});
}

TEST(UnicodeText, NfcComposesAndReorders) {
  EXPECT_EQ(to_nfc("e\xcc\x81"), "\xc3\xa9");                                 // e + acute
  EXPECT_EQ(to_nfc("\xe2\x84\xab"), "\xc3\x85");                              // Angstrom sign
  EXPECT_EQ(to_nfc("\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab"), "\xed\x95\x9c");  // Hangul jamo
  EXPECT_EQ(to_nfc("q\xcc\x87\xcc\xa3"), "q\xcc\xa3\xcc\x87");    // dot above, dot below
  EXPECT_EQ(to_nfc("\xe0\xa5\x98"), "\xe0\xa4\x95\xe0\xa4\xbc");  // composition exclusion
  EXPECT_EQ(to_nfc("\xef\xac\x81"), "\xef\xac\x81");              // a ligature is not canonical
  EXPECT_EQ(to_nfc(""), "");
}

std::string repeated(const std::string& unit, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += unit;
  return text;
}

TEST(UnicodeText, LongRunsOfMarksAreSortedAsShortOnesAre) {
  const std::string above = "\xcc\x81";  // class 230
  const std::string below = "\xcc\x96";  // class 220
  // Long enough for the run to be sorted before ICU sees it, and around the limit.
  for (const size_t count : {1u, 15u, 16u, 17u, 500u}) {
    EXPECT_EQ(to_nfc("x" + repeated(above + below, count) + "y"),
              "x" + repeated(below, count) + repeated(above, count) + "y")
        << count;
    // The first acute composes with e; U+0344 and U+0F73 decompose into marks of their own.
    EXPECT_EQ(to_nfc("e" + repeated(above + below, count)),
              "\xc3\xa9" + repeated(below, count) + repeated(above, count - 1))
        << count;
    EXPECT_EQ(to_nfc("z" + repeated("\xcd\x84" + below, count)),
              "z" + repeated(below, count) + repeated("\xcc\x88\xcc\x81", count))
        << count;
    EXPECT_EQ(to_nfc("z" + repeated("\xe0\xbd\xb3\xe0\xbd\xb1", count)),
              "z" + repeated("\xe0\xbd\xb1", 2 * count) + repeated("\xe0\xbd\xb2", count))
        << count;
  }
}

TEST(UnicodeText, EndlessRunsOfMarksTakeLinearTime) {
  const std::clock_t start = std::clock();
  for (const char* unit :
       {"\xcc\x81\xcc\x96", "\xe0\xbd\xb3\xe0\xbd\xb1", "e\xcc\x81", "\xe0\xac\xbe"}) {
    to_nfc(repeated(unit, (size_t{1} << 20) / 4));
  }
  // Sorting by insertion alone would take minutes.
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 20.0);
}

TEST(UnicodeText, PropertiesFollowUnicode) {
  for (const char32_t c : {U' ', U'\t', U'\n', U'\u0085', U'\u00a0', U'\u2003', U'\u3000'})
    EXPECT_TRUE(is_white_space(c));
  for (const char32_t c : {U'a', U'\u180e', U'\u200b', U'\ufeff'}) EXPECT_FALSE(is_white_space(c));
  for (const char32_t c : {U'a', U'\u00e9', U'7', U'_', U'\u0301', U'\u65e5', U'\u200d'})
    EXPECT_TRUE(is_word(c));
  for (const char32_t c : {U' ', U'-', U'\u00b2', U'\U0001f642'}) EXPECT_FALSE(is_word(c));
}

}  // namespace
}  // namespace grpo::model
