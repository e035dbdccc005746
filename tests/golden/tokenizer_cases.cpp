#include "tests/golden/tokenizer_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>

#include "model/tokenizer/chat_template.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/golden/case_kinds.h"
#include "tests/golden/golden_json.h"

namespace grpo::golden {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kTokenizerKind = "tokenizer";
constexpr const char* kChatKind = "chat_template";

std::string quoted(const std::string& text) {
  return json(text).dump(-1, ' ', true, json::error_handler_t::replace);
}

std::string id_list(const std::vector<int32_t>& ids) { return json(ids).dump(); }

// A key that the kind of case does not have here, or "".
std::string unknown_key(const json& object, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items())
    if (std::find(known.begin(), known.end(), key) == known.end()) return key;
  return "";
}

CaseResult run_text_case(const model::Tokenizer& tokenizer, const json& item,
                         const std::string& name) {
  const std::string unknown =
      unknown_key(item, {"text", "ids", "decoded", "decoded_without_special"});
  if (!unknown.empty()) return unsupported(kTokenizerKind, name, "key " + unknown);
  Comparison comparison;
  const auto ids = item.at("ids").get<std::vector<int32_t>>();
  comparison.equal("ids", id_list(tokenizer.encode(item.at("text").get<std::string>())),
                   id_list(ids));
  if (item.contains("decoded"))
    comparison.equal("decoded", quoted(tokenizer.decode(ids, false)),
                     quoted(item.at("decoded").get<std::string>()));
  if (item.contains("decoded_without_special"))
    comparison.equal("decoded_without_special", quoted(tokenizer.decode(ids, true)),
                     quoted(item.at("decoded_without_special").get<std::string>()));
  return comparison.result(kTokenizerKind, name);
}

CaseResult run_chat_case(const model::Tokenizer& tokenizer, const json& item,
                         const std::string& name) {
  std::string unknown = unknown_key(item, {"messages", "add_generation_prompt", "text", "ids"});
  std::vector<model::ChatMessage> messages;
  for (const json& message : item.at("messages")) {
    if (unknown.empty()) unknown = unknown_key(message, {"role", "content"});
    if (unknown.empty())
      messages.push_back(
          {message.at("role").get<std::string>(), message.at("content").get<std::string>()});
  }
  if (!unknown.empty()) return unsupported(kChatKind, name, "key " + unknown);
  const std::string text =
      apply_chat_template(messages, item.value("add_generation_prompt", false));
  Comparison comparison;
  if (item.contains("text"))
    comparison.equal("text", quoted(text), quoted(item.at("text").get<std::string>()));
  if (item.contains("ids"))
    comparison.equal("ids", id_list(tokenizer.encode(text)),
                     id_list(item.at("ids").get<std::vector<int32_t>>()));
  return comparison.result(kChatKind, name);
}

CaseResult run_case(const model::Tokenizer& tokenizer, const json& item, const std::string& name) {
  const bool is_chat = item.contains("messages");
  try {
    return is_chat ? run_chat_case(tokenizer, item, name) : run_text_case(tokenizer, item, name);
  } catch (const std::exception& error) {
    return {is_chat ? kChatKind : kTokenizerKind, name, CaseResult::Status::kFail, error.what()};
  }
}

// (name, case) of every tokenizer case in the folder's JSON files, which are read in the order of
// their names.
std::vector<std::pair<std::string, json>> cases_of(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".json" && entry.path().filename() != "tokenizer.json")
      paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::pair<std::string, json>> cases;
  for (const fs::path& path : paths) {
    const json content = read_golden_json(path);
    if (!content.is_object() || !content.contains("cases")) continue;
    const json& list = content.at("cases");
    for (size_t i = 0; i < list.size(); ++i)
      if (is_tokenizer_case(list[i]))
        cases.emplace_back(fmt::format("{} #{}", path.stem().string(), i), list[i]);
  }
  return cases;
}

}  // namespace

std::vector<CaseResult> run_tokenizer_cases(const fs::path& folder,
                                            const fs::path& fallback_folder) {
  const auto cases = cases_of(folder);
  std::unique_ptr<model::Tokenizer> tokenizer;
  for (const fs::path& candidate : {folder, fallback_folder})
    if (tokenizer == nullptr && fs::exists(candidate / "tokenizer.json"))
      tokenizer = model::load_tokenizer(candidate / "tokenizer.json");
  std::vector<CaseResult> results;
  for (const auto& [name, item] : cases) {
    if (tokenizer == nullptr)
      results.push_back({kTokenizerKind, name, CaseResult::Status::kNotRun, "no tokenizer.json"});
    else
      results.push_back(run_case(*tokenizer, item, name));
  }
  return results;
}

}  // namespace grpo::golden
