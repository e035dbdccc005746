// Qwen2.5's chat template (ChatML): messages to the text a model was trained to continue.
#pragma once

#include <span>
#include <string>

namespace grpo::model {

struct ChatMessage {
  std::string role;  // system, user, assistant or tool
  std::string content;
};

// The text of the template in Qwen2.5's tokenizer_config.json for messages without tool calls:
// without a system message at the start its default one comes first; answers of tools are wrapped
// and share a user turn. `add_generation_prompt` opens an assistant's turn. Throws DataError for no
// messages or another role.
std::string apply_chat_template(std::span<const ChatMessage> messages, bool add_generation_prompt);

}  // namespace grpo::model
