#include "model/tokenizer/chat_template.h"

#include <gtest/gtest.h>

#include <vector>

#include "model/core/errors.h"
#include "tests/model/scratch_folder.h"

namespace grpo::model {
namespace {

using Messages = std::vector<ChatMessage>;

TEST(ChatTemplate, AnswersOfToolsShareAUserTurn) {
  const Messages messages = {{"system", "S"}, {"user", "U"},      {"tool", "one"},
                             {"tool", "two"}, {"assistant", "A"}, {"tool", "3"}};
  EXPECT_EQ(
      apply_chat_template(messages, true),
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
      "<|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</"
      "tool_response><|im_end|>\n"
      "<|im_start|>assistant\nA<|im_end|>\n"
      "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, ALaterSystemMessageIsATurnOfItsOwn) {
  const Messages messages = {{"user", "U"}, {"system", "S"}};
  EXPECT_EQ(apply_chat_template(messages, false),
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
            "assistant.<|im_end|>\n"
            "<|im_start|>user\nU<|im_end|>\n<|im_start|>system\nS<|im_end|>\n");
}

TEST(ChatTemplate, NoMessagesAndUnknownRolesAreRefused) {
  expect_parts(message_of<DataError>([] { apply_chat_template(Messages{}, true); }),
               {"at least one message"});
  expect_parts(message_of<DataError>([] {
                 apply_chat_template(Messages{{"user", ""}, {"robot", ""}}, true);
               }),
               {"message 1 has role \"robot\"; system, user, assistant or tool"});
}

}  // namespace
}  // namespace grpo::model
