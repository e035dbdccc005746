#include "model/tokenizer/chat_template.h"

#include "model/core/errors.h"
#include "model/files/json_text.h"

namespace grpo::model {
namespace {

constexpr const char* kDefaultSystem =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

std::string turn(const std::string& role, const std::string& content) {
  return "<|im_start|>" + role + "\n" + content + "<|im_end|>\n";
}

}  // namespace

std::string apply_chat_template(std::span<const ChatMessage> messages, bool add_generation_prompt) {
  if (messages.empty()) throw DataError("a chat needs at least one message");
  std::string text;
  if (messages.front().role != "system") text += turn("system", kDefaultSystem);
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    if (role == "system" || role == "user" || role == "assistant") {
      text += turn(role, content);
    } else if (role == "tool") {
      if (i == 0 || messages[i - 1].role != "tool") text += "<|im_start|>user";
      text += "\n<tool_response>\n" + content + "\n</tool_response>";
      if (i + 1 == messages.size() || messages[i + 1].role != "tool") text += "<|im_end|>\n";
    } else {
      throw DataError(
          fmt::format("message {} has role {}; system, user, assistant or tool is expected", i,
                      shown_text(role)));
    }
  }
  if (add_generation_prompt) text += "<|im_start|>assistant\n";
  return text;
}

}  // namespace grpo::model
