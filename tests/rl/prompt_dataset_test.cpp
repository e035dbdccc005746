#include "rl/data/prompt_dataset.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "tests/rl/null_visitor.h"

namespace grpo::rl {
namespace {

// One token a byte.
class ByteTokenizer : public model::Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    return {text.begin(), text.end()};
  }
  std::string decode(std::span<const int32_t> tokens, bool) const override {
    return {tokens.begin(), tokens.end()};
  }
  int64_t vocab_size() const override { return 256; }
  std::optional<int32_t> eos_token_id() const override { return std::nullopt; }
  std::optional<int32_t> token_to_id(std::string_view) const override { return std::nullopt; }
};

class PromptDatasetTest : public testing::Test {
 protected:
  PromptDatasetTest()
      : path_(std::filesystem::temp_directory_path() /
              ("grpo_prompts_" + std::to_string(getpid()) + ".jsonl")) {
    config_.path = path_.string();
  }
  ~PromptDatasetTest() override { std::filesystem::remove(path_); }

  PromptDataset load(const std::string& content) {
    std::ofstream(path_, std::ios::binary) << content;
    return PromptDataset(config_, tokenizer_);
  }

  // What follows "<path>" in the DataError of loading.
  std::string error_of(const std::string& content) {
    try {
      load(content);
    } catch (const DataError& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with(config_.path)) << message;
      return message.substr(std::min(message.size(), config_.path.size()));
    }
    return "";
  }

  std::filesystem::path path_;
  DatasetConfig config_;
  ByteTokenizer tokenizer_;
};

TEST_F(PromptDatasetTest, FillsTemplates) {
  config_.prompt_template = "Q: {q} {{x}}\nA:";
  config_.answer_template = "{a}";
  config_.response_template = " {a}.";
  const PromptDataset dataset =
      load("{\"q\": \"1+1\", \"a\": 2}\n\n{\"q\": \"\xc3\xa9\", \"a\": true}\r\n");
  ASSERT_EQ(dataset.size(), 2);
  EXPECT_EQ(dataset.example(0).prompt, "Q: 1+1 {x}\nA:");
  EXPECT_EQ(dataset.example(0).answer, "2");
  EXPECT_EQ(dataset.example(0).response_tokens, (std::vector<int32_t>{' ', '2', '.'}));
  EXPECT_EQ(dataset.example(1).index, 1);
  EXPECT_EQ(dataset.example(1).answer, "true");
}

TEST_F(PromptDatasetTest, ErrorsNameFileAndLine) {
  const std::string good = "{\"prompt\": \"p\", \"answer\": \"a\"}\n";
  EXPECT_EQ(error_of(good + "\n{\"promt\": \"p\", \"answer\": \"a\"}\n"),
            ":3: has no field \"prompt\"; the nearest is \"promt\"");
  EXPECT_EQ(error_of(good + "{\"prompt\": \"\xff\"}\n"),
            ":2: the text is not UTF-8: byte 0xff at offset 12");
  EXPECT_TRUE(error_of(good + "{\"prompt\": \n").starts_with(":2: the line: not valid JSON"));
  EXPECT_EQ(error_of("[1]\n"), ":1: the line is array; a JSON object is needed");
  EXPECT_EQ(error_of("{\"prompt\": [1], \"answer\": \"a\"}\n"),
            ":1: field \"prompt\" is array; allowed: string, number, boolean");
  EXPECT_EQ(error_of("{\"prompt\": \"\", \"answer\": \"a\"}\n"), ":1: the prompt is empty");
  EXPECT_EQ(error_of("\n \n"), ": no line holds an example");
  config_.max_input_seq_length = 3;
  EXPECT_EQ(
      error_of(
          "{\"prompt\": \"abc\", \"answer\": \"a\"}\n{\"prompt\": \"abcd\", \"answer\": \"a\"}\n"),
      ":2: the prompt has 4 tokens; allowed: 3 (max_input_seq_length)");
}

TEST_F(PromptDatasetTest, AMissingFileSaysSo) {
  EXPECT_THROW(PromptDataset(config_, tokenizer_), DataError);
}

TEST_F(PromptDatasetTest, EveryEpochHoldsEachExampleOnceInItsOwnOrder) {
  std::string content;
  for (int i = 0; i < 50; ++i)
    content += "{\"prompt\": \"p" + std::to_string(i) + "\", \"answer\": \"\"}\n";
  const PromptDataset dataset = load(content);
  std::vector<std::vector<int64_t>> epochs(2);
  for (int64_t position = 0; position < 100; ++position)
    epochs[static_cast<size_t>(position / 50)].push_back(dataset.at_position(position, 7).index);
  for (const auto& epoch : epochs)
    EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), 50u);
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_EQ(epochs[1], epoch_order(50, 7, 1));
  EXPECT_NE(epochs[0], epoch_order(50, 8, 0));
  EXPECT_EQ(dataset.at_position(3, 7).index, epochs[0][3]);  // going back gives the same
}

TEST_F(PromptDatasetTest, WithoutShuffleTheFileOrderRepeats) {
  config_.shuffle = false;
  const PromptDataset dataset =
      load("{\"prompt\": \"a\", \"answer\": \"\"}\n{\"prompt\": \"b\", \"answer\": \"\"}\n");
  EXPECT_EQ(dataset.at_position(3, 7).prompt, "b");
  EXPECT_EQ(dataset.at_position(4, 7).prompt, "a");
}

TEST(EpochOrder, EveryPlaceIsReachable) {
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 200; ++epoch) orders.insert(epoch_order(3, 1, epoch));
  EXPECT_EQ(orders.size(), 6u);
}

TEST(DatasetConfig, TemplatesAreChecked) {
  const auto error_with = [](const std::string& text) {
    DatasetConfig config;
    config.path = "x.jsonl";
    config.prompt_template = text;
    return validation_error(config);
  };
  EXPECT_EQ(error_with("{prompt}"), "");
  EXPECT_EQ(error_with("ab{c"),
            "test.yaml:1:1: prompt_template: '{' at offset 2 is not closed; write {{ for a brace");
  EXPECT_EQ(error_with("ab}"),
            "test.yaml:1:1: prompt_template: '}' at offset 2 closes nothing; write }} for a brace");
  EXPECT_EQ(error_with("{}"), "test.yaml:1:1: prompt_template: no field name at offset 0");
}

}  // namespace
}  // namespace grpo::rl
