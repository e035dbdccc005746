#include "model/tokenizer/tokenizer_json.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "model/core/errors.h"
#include "model/files/json_text.h"

namespace grpo::model {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr int64_t kMaxTokenId = (int64_t{1} << 22) - 1;

// The pattern that ByteLevel applies when use_regex is on: GPT-2's.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

int32_t token_id_of(const json& value, const std::string& where) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{kMaxTokenId}) {
    throw DataError(
        fmt::format("{} is {}; token ids are 0 to {}", where, shown(value), kMaxTokenId));
  }
  return value.get<int32_t>();
}

// Takes model.vocab and model.merges out of the stream of events: as JSON values they would cost
// more than the rest of loading.
class ModelStreamer {
 public:
  ModelStreamer(TokenizerJson& result, const std::string& path) : result_(result), path_(path) {}

  bool observe(int depth, JsonEvent event, const json& parsed) {
    if (event == JsonEvent::kKey && depth <= 2) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (depth == 1) in_model_ = key == "model";
      const bool is_field = depth == 2 && in_model_;
      field_ = is_field && key == "vocab"    ? Field::kVocab
               : is_field && key == "merges" ? Field::kMerges
                                             : Field::kOther;
      return true;
    }
    if (field_ == Field::kVocab) return observe_vocab(depth, event, parsed);
    if (field_ == Field::kMerges) return observe_merges(depth, event, parsed);
    return true;
  }

 private:
  enum class Field { kOther, kVocab, kMerges };

  [[noreturn]] void fail(const std::string& problem) const {
    throw DataError(fmt::format("{}: {}", path_, problem));
  }

  bool observe_vocab(int depth, JsonEvent event, const json& parsed) {
    if (depth == 2)
      return end_field(event, JsonEvent::kObjectStart, JsonEvent::kObjectEnd, "model.vocab",
                       "an object");
    if (depth < 2) return true;
    if (event == JsonEvent::kKey) {
      piece_ = parsed.get<std::string>();
      return false;
    }
    if (event != JsonEvent::kValue)
      fail(fmt::format("model.vocab {} is not a token id", shown_text(piece_)));
    const std::string where = fmt::format("{}: model.vocab {}", path_, shown_text(piece_));
    result_.vocab.emplace_back(std::move(piece_), token_id_of(parsed, where));
    return false;
  }

  bool observe_merges(int depth, JsonEvent event, const json& parsed) {
    if (depth == 2)
      return end_field(event, JsonEvent::kArrayStart, JsonEvent::kArrayEnd, "model.merges",
                       "a list");
    if (depth < 2) return true;
    const size_t number = result_.merges.size();
    if (depth == 3 && event == JsonEvent::kValue && parsed.is_string()) {
      const auto& line = parsed.get_ref<const std::string&>();
      const size_t blank = line.find(' ');
      if (blank == std::string::npos || line.find(' ', blank + 1) != std::string::npos) {
        fail(fmt::format("model.merges[{}] is {}; two pieces with a blank between are expected",
                         number, shown_text(line)));
      }
      result_.merges.emplace_back(line.substr(0, blank), line.substr(blank + 1));
    } else if (depth == 3 && event == JsonEvent::kArrayStart) {
      pair_.clear();
      return true;  // or its elements would not be seen
    } else if (depth == 4 && event == JsonEvent::kValue && parsed.is_string()) {
      pair_.push_back(parsed.get<std::string>());
    } else if (depth == 3 && event == JsonEvent::kArrayEnd && pair_.size() == 2) {
      result_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
    } else {
      fail(fmt::format("model.merges[{}] is neither \"a b\" nor [\"a\", \"b\"]", number));
    }
    return false;
  }

  // Events of the field's own value: its start and end, or something that it may not be.
  bool end_field(JsonEvent event, JsonEvent start, JsonEvent end, const char* name,
                 const char* expected) {
    if (event != start && event != end) fail(fmt::format("{} is not {}", name, expected));
    if (event == end) field_ = Field::kOther;
    return true;
  }

  TokenizerJson& result_;
  const std::string& path_;
  bool in_model_ = false;
  Field field_ = Field::kOther;
  std::string piece_;
  std::vector<std::string> pair_;
};

// One object of the file: typed access with errors that name the key.
class Section {
 public:
  Section(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object())
      throw DataError(fmt::format("{} is {}, expected an object", where_, shown(object_)));
  }

  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::string text(const char* key) const {
    const json* value = find(key);
    if (value == nullptr || !value->is_string()) {
      throw DataError(fmt::format("{}.{} is {}, expected a string", where_, key,
                                  value ? shown(*value) : "missing"));
    }
    return value->get<std::string>();
  }

  bool flag(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) refuse(key, "true or false is expected");
    return value->get<bool>();
  }

  [[noreturn]] void refuse(const char* key, const std::string& allowed) const {
    const json* value = find(key);
    throw DataError(
        fmt::format("{}.{} is {}; {}", where_, key, value ? shown(*value) : "missing", allowed));
  }

  const std::string& where() const { return where_; }

 private:
  const json& object_;
  std::string where_;
};

void read_byte_level(const Section& section, TokenizerJson& result) {
  if (section.flag("add_prefix_space", true))
    section.refuse("add_prefix_space", "only false is supported");
  if (section.flag("use_regex", true)) result.split_patterns.emplace_back(kByteLevelPattern);
}

void read_split(const Section& section, TokenizerJson& result) {
  if (section.text("behavior") != "Isolated")
    section.refuse("behavior", "only \"Isolated\" is supported");
  if (section.flag("invert", false)) section.refuse("invert", "only false is supported");
  const json* pattern = section.find("pattern");
  if (pattern == nullptr) section.refuse("pattern", "{\"Regex\": \"...\"} is expected");
  result.split_patterns.push_back(Section(*pattern, section.where() + ".pattern").text("Regex"));
}

void read_pre_tokenizer(const json* value, const std::string& where, TokenizerJson& result) {
  if (value == nullptr) {
    throw DataError(fmt::format(
        "{} is missing; ByteLevel, or a Sequence of Split and ByteLevel, is supported", where));
  }
  const Section section(*value, where);
  const std::string type = section.text("type");
  if (type == "ByteLevel") {
    read_byte_level(section, result);
    return;
  }
  if (type != "Sequence") {
    section.refuse("type",
                   "\"ByteLevel\" and a \"Sequence\" of \"Split\" and \"ByteLevel\" are supported");
  }
  const json* items = section.find("pretokenizers");
  if (items == nullptr || !items->is_array() || items->empty()) {
    section.refuse("pretokenizers", "a list that ends with ByteLevel is expected");
  }
  for (size_t i = 0; i < items->size(); ++i) {
    const Section item((*items)[i], fmt::format("{}.pretokenizers[{}]", where, i));
    const bool is_last = i + 1 == items->size();
    const std::string expected = is_last ? "ByteLevel" : "Split";
    if (item.text("type") != expected)
      item.refuse("type", fmt::format("\"{}\" is supported here", expected));
    if (is_last) {
      read_byte_level(item, result);
    } else {
      read_split(item, result);
    }
  }
}

void read_normalizer(const json* value, const std::string& where, TokenizerJson& result) {
  if (value == nullptr) return;
  const Section section(*value, where);
  if (section.text("type") != "NFC")
    section.refuse("type", "\"NFC\" or no normalizer is supported");
  result.normalize_nfc = true;
}

void read_added_tokens(const json* value, const std::string& where, TokenizerJson& result) {
  if (value == nullptr) return;
  if (!value->is_array())
    throw DataError(fmt::format("{} is {}, expected a list", where, shown(*value)));
  for (size_t i = 0; i < value->size(); ++i) {
    const Section section((*value)[i], fmt::format("{}[{}]", where, i));
    AddedToken token;
    token.content = section.text("content");
    if (token.content.empty())
      section.refuse("content", "a text of at least one character is expected");
    const json* id = section.find("id");
    token.id = token_id_of(id ? *id : json(), section.where() + ".id");
    token.single_word = section.flag("single_word", false);
    token.lstrip = section.flag("lstrip", false);
    token.rstrip = section.flag("rstrip", false);
    token.special = section.flag("special", false);
    token.normalized = section.flag("normalized", !token.special);
    result.added_tokens.push_back(std::move(token));
  }
}

void check_model(const json* value, const std::string& where, TokenizerJson& result) {
  if (value == nullptr)
    throw DataError(fmt::format("{} is missing (not a tokenizer.json?)", where));
  const Section section(*value, where);
  if (section.text("type") != "BPE") section.refuse("type", "only \"BPE\" is supported");
  if (const json* dropout = section.find("dropout"); dropout && *dropout != json(0.0)) {
    section.refuse("dropout", "only null is supported");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const json* affix = section.find(key); affix && *affix != json("")) {
      section.refuse(key, "only null is supported");
    }
  }
  if (section.flag("byte_fallback", false))
    section.refuse("byte_fallback", "only false is supported");
  result.ignore_merges = section.flag("ignore_merges", false);
  result.has_unknown_token =
      section.find("unk_token") != nullptr && !section.text("unk_token").empty();
  if (result.vocab.empty()) throw DataError(fmt::format("{}.vocab is missing or empty", where));
}

}  // namespace

TokenizerJson read_tokenizer_json(const std::filesystem::path& path) {
  const std::string name = path.string();
  TokenizerJson result;
  ModelStreamer streamer(result, name);
  const json object = parse_json(read_whole_file(path, kMaxFileBytes), name,
                                 [&](int depth, JsonEvent event, const json& parsed) {
                                   return streamer.observe(depth, event, parsed);
                                 });
  if (!object.is_object())
    throw DataError(fmt::format("{}: holds {}, expected an object", name, shown(object)));
  const Section root(object, name);
  check_model(root.find("model"), name + ": model", result);
  read_added_tokens(root.find("added_tokens"), name + ": added_tokens", result);
  read_normalizer(root.find("normalizer"), name + ": normalizer", result);
  read_pre_tokenizer(root.find("pre_tokenizer"), name + ": pre_tokenizer", result);
  const std::string decoder_where = name + ": decoder";
  const json* decoder = root.find("decoder");
  if (decoder == nullptr)
    throw DataError(fmt::format("{} is missing; ByteLevel is supported", decoder_where));
  const Section decoder_section(*decoder, decoder_where);
  if (decoder_section.text("type") != "ByteLevel")
    decoder_section.refuse("type", "only \"ByteLevel\" is supported");
  return result;
}

}  // namespace grpo::model
