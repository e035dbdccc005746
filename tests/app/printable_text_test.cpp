#include "app/text/printable_text.h"

#include <gtest/gtest.h>

namespace grpo::app {
namespace {

TEST(PrintableText, StaysOnOneLineAndLeavesTheTerminalAlone) {
  EXPECT_EQ(escaped("w\xC3\xB6rld a b"), "w\xC3\xB6rld a b");
  EXPECT_EQ(escaped("a\nb\tc\rd"), "a\\nb\\tc\\x0dd");
  EXPECT_EQ(escaped("\x1b[31m\x7f"), "\\x1b[31m\\x7f");
  EXPECT_EQ(escaped("\xC2\x9B"), "\\xc2\\x9b");           // a control character of two bytes
  EXPECT_EQ(escaped("\xE2\x80\xA8"), "\\xe2\\x80\\xa8");  // a line separator
  EXPECT_EQ(escaped("\xFF\xC3"), "\\xff\\xc3");
  EXPECT_EQ(escaped(std::string("\0", 1)), "\\x00");
}

TEST(PrintableText, IsCutBetweenCharacters) {
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("ab\xC3\xB6"
                      "c",
                      3),
            "ab\xC3\xB6...");
}

}  // namespace
}  // namespace grpo::app
