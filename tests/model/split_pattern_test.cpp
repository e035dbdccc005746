#include "model/tokenizer/split_pattern.h"

#include <gtest/gtest.h>

#include "model/core/errors.h"
#include "tests/model/scratch_folder.h"

namespace grpo::model {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(const std::string& regex, std::string_view text) {
  const SplitPattern pattern(regex, "test");
  PatternMatcher matcher(pattern);
  Pieces pieces;
  matcher.split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(SplitPattern, MatchesAndWhatLiesBetweenAreIsolated) {
  EXPECT_EQ(split(R"(\p{N})", "a12b"), (Pieces{"a", "1", "2", "b"}));
  EXPECT_EQ(split(R"(x+)", "xxaxx"), (Pieces{"xx", "a", "xx"}));
  EXPECT_EQ(split(R"(x+)", "abc"), (Pieces{"abc"}));
  EXPECT_TRUE(split(R"(x+)", "").empty());
}

TEST(SplitPattern, EmptyMatchesSplitButGiveNoPiece) {
  EXPECT_EQ(split(R"(x*)", "axx\xc3\xa9"), (Pieces{"a", "xx", "\xc3\xa9"}));
  EXPECT_EQ(split(R"((?=b))", "abcb"), (Pieces{"a", "bc", "b"}));
}

TEST(SplitPattern, SpaceIsThePropertyWhiteSpace) {
  EXPECT_EQ(split(R"(\s+)", "a\xc2\x85\xe3\x80\x80z"), (Pieces{"a", "\xc2\x85\xe3\x80\x80", "z"}));
  EXPECT_EQ(split(R"(\s+)", "a\xe1\xa0\x8ez"), (Pieces{"a\xe1\xa0\x8ez"}));  // U+180E
  EXPECT_EQ(split(R"([^\s]+)", "a\xe1\xa0\x8e z"), (Pieces{"a\xe1\xa0\x8e", " ", "z"}));
  EXPECT_EQ(split(R"(\S+)", "a b"), (Pieces{"a", " ", "b"}));
}

TEST(SplitPattern, CaseIsFoldedInUnicode) {
  EXPECT_EQ(split(R"((?i:'s))", "a'Sb'\xc5\xbf"), (Pieces{"a", "'S", "b", "'\xc5\xbf"}));  // long s
}

TEST(SplitPattern, WhatTheEnginesReadDifferentlyIsRefused) {
  const auto problem = [](const std::string& regex) {
    return message_of<DataError>([&] { const SplitPattern pattern(regex, "file: key"); });
  };
  for (const char* regex : {R"(\h)", R"(\w+)", R"(\b)", R"(\R)", R"((a)\1)", R"(a\)", R"((?m:.))",
                            R"((?<n>a))", R"([a[b]])", R"([a&&b])", R"([]a])", R"((?#x)a)"}) {
    expect_parts(problem(regex), {"file: key: pattern \"", "uses ", "not supported"});
  }
  for (const char* regex : {"(", "a{2,1}", "[b-a]", R"(\p{Nonsense})", "*"}) {
    expect_parts(problem(regex), {"file: key: pattern \"", "does not compile"});
  }
  expect_parts(problem(std::string(20000, 'a')), {"pattern of 20000 bytes, at most 10000"});
}

TEST(SplitPattern, EndlessBacktrackingStops) {
  expect_parts(message_of<DataError>([] { split(R"((?:a+)+[bc])", std::string(64, 'a')); }),
               {"the tokenizer's pattern fails at byte 0 of 64"});
}

TEST(SplitPattern, MegabytesOfBlanksMatch) {
  const std::string blanks(size_t{4} << 20, ' ');
  EXPECT_EQ(split(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", blanks + "x"),
            (Pieces{blanks.substr(1), " ", "x"}));
}

}  // namespace
}  // namespace grpo::model
