#include "rl/data/reward.h"

#include <gtest/gtest.h>

#include "rl/data/decimal_number.h"
#include "tests/rl/null_visitor.h"

namespace grpo::rl {
namespace {

RewardConfig exact_match(const std::string& pattern) {
  RewardConfig config;
  config.pattern = pattern;
  return config;
}

double score(const RewardConfig& config, std::string_view completion, std::string_view answer) {
  return make_reward_function(config)->score(
      {.prompt = "", .completion = completion, .answer = answer});
}

TEST(DecimalNumber, OneSpellingForAValue) {
  for (const char* text : {"7", "7.0", "007", "+7", "7.", "07.000"})
    EXPECT_EQ(canonical_decimal(text), "7") << text;
  EXPECT_EQ(canonical_decimal("-0.50"), "-0.5");
  EXPECT_EQ(canonical_decimal(".5"), "0.5");
  EXPECT_EQ(canonical_decimal("-0"), "0");
  EXPECT_EQ(canonical_decimal("100"), "100");
  EXPECT_EQ(canonical_decimal("123456789012345678901234567890.10"),
            "123456789012345678901234567890.1");
  for (const char* text : {"", "-", ".", "+.", "1.2.3", "1e3", "0x7", "--7", " 7", "1,000"})
    EXPECT_EQ(canonical_decimal(text), std::nullopt) << text;
}

TEST(ExactMatch, WholeTextWithoutAPattern) {
  EXPECT_EQ(score(exact_match(""), " Paris\n", "Paris"), 1.0);
  EXPECT_EQ(score(exact_match(""), "paris", "Paris"), 0.0);
  EXPECT_EQ(score(exact_match(""), "7.0", " 007"), 1.0);
  EXPECT_EQ(score(exact_match(""), "7.1", "7"), 0.0);
}

TEST(ExactMatch, TheLastMatchWins) {
  const RewardConfig config = exact_match("#### *(-?[0-9.]+)");
  EXPECT_EQ(score(config, "#### 3 no, #### 42", "42"), 1.0);
  EXPECT_EQ(score(config, "#### 42 no, #### 3", "42"), 0.0);
  EXPECT_EQ(score(config, "the answer is 42", "42"), 0.0);
  EXPECT_EQ(score(exact_match("([0-9]+)"), "7 123", "123"), 1.0);  // not the "3" alone
}

TEST(ExactMatch, MatchesWithoutTheGroupAndEmptyMatchesAreNoAnswers) {
  EXPECT_EQ(score(exact_match("([0-9]+)|end"), "5 end", "5"), 1.0);
  EXPECT_EQ(score(exact_match("([0-9]*)"), "ab5", "5"),
            0.0);  // the last match is empty, at the end
}

TEST(ExactMatch, NoExpectedAnswerIsNoSuccess) {
  EXPECT_EQ(score(exact_match(""), "", ""), 0.0);
  EXPECT_EQ(score(exact_match(""), " ", " "), 0.0);
}

TEST(ExactMatch, TextThatIsNotUtf8DoesNotMatter) {
  EXPECT_EQ(score(exact_match("=([0-9]+)"), "\xff\xfe=8\xc3", "8"), 1.0);
}

TEST(ExactMatch, PatternsThatBacktrackersDieOnAreFast) {
  const std::string text(20000, 'a');
  EXPECT_EQ(score(exact_match("(a*)*b"), text, "a"), 0.0);
}

TEST(PatternReward, MatchesAnywhere) {
  RewardConfig config;
  config.type = "pattern";
  config.pattern = "<think>(?s:.*)</think>";
  config.score = 0.5;
  EXPECT_EQ(score(config, "a <think>\n</think> b", ""), 0.5);
  EXPECT_EQ(score(config, "a <think> b", ""), 0.0);
}

TEST(RewardSet, WeightedSumInTheOrderOfTheConfig) {
  RewardConfig format;
  format.name = "format";
  format.type = "pattern";
  format.pattern = "!$";
  format.weight = 0.25;
  format.score = 2;
  RewardConfig answer = exact_match("([0-9]+)");
  answer.weight = 3;
  const RewardSet set({format, answer});
  EXPECT_EQ(set.names(), (std::vector<std::string>{"format", "answer"}));
  const RewardResult both = set.score({.prompt = "", .completion = "12!", .answer = "12"});
  EXPECT_EQ(both.total, 3.5);
  EXPECT_EQ(both.components, (std::vector<double>{2, 1}));
  EXPECT_EQ(set.score({.prompt = "", .completion = "13!", .answer = "12"}).total, 0.5);
  EXPECT_THROW(RewardSet({answer, answer}), ConfigError);
}

TEST(RewardConfig, ErrorsSayWhereThePatternIsWrong) {
  EXPECT_EQ(validation_error(exact_match("(a")),
            "test.yaml:1:1: pattern: \"(a\" is no regular expression (RE2 syntax): missing ): (a "
            "at offset 0");
  EXPECT_EQ(validation_error(exact_match("ab[c")),
            "test.yaml:1:1: pattern: \"ab[c\" is no regular expression (RE2 syntax): missing ]: [c "
            "at offset 2");
  EXPECT_EQ(validation_error(exact_match("[0-9]+")),
            "test.yaml:1:1: pattern: \"[0-9]+\" needs a group (...) around the answer");
  RewardConfig pattern;
  pattern.type = "pattern";
  EXPECT_EQ(validation_error(pattern),
            "test.yaml:1:1: pattern: type: pattern needs a regular expression");
  EXPECT_THROW(make_reward_function(pattern), ConfigError);
  RewardConfig named;
  named.name = "a/b";
  EXPECT_EQ(validation_error(named),
            "test.yaml:1:1: name: \"a/b\" is not a word of letters, digits, '_', '-' and '.'");
}

}  // namespace
}  // namespace grpo::rl
