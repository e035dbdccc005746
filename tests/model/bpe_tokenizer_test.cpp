#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include "model/core/errors.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/model/scratch_folder.h"

namespace grpo::model {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

std::filesystem::path golden(const char* name) {
  return std::filesystem::path(GRPO_TEST_DATA_DIR) / "golden" / name;
}

json small_bpe() {
  std::ifstream file(golden("small_bpe/tokenizer.json"));
  return json::parse(file);
}

std::unique_ptr<Tokenizer> load(const json& content) {
  const ScratchFolder folder;
  return load_tokenizer(folder.write("tokenizer.json", content.dump()));
}

std::string refusal(const json& content) {
  return message_of<DataError>([&] { load(content); });
}

json added(int id, const char* content, const json& flags = json::object()) {
  json token = {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", false}};
  token.update(flags);
  return token;
}

TEST(ByteLevel, EveryByteHasItsOwnCharacter) {
  EXPECT_EQ(byte_level_piece('a'), "a");
  EXPECT_EQ(byte_level_piece(' '), "\xc4\xa0");   // U+0120
  EXPECT_EQ(byte_level_piece('\n'), "\xc4\x8a");  // U+010A
  EXPECT_EQ(byte_level_piece(0xad), "\xc5\x83");  // U+0143, the last
  for (unsigned byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(byte_level_bytes(byte_level_piece(static_cast<uint8_t>(byte))),
              std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(byte_level_bytes("a b"), std::nullopt);
  EXPECT_EQ(byte_level_bytes("\xc5\x84"), std::nullopt);  // U+0144
}

// Expected ids below come from the tokenizers library (0.23) with the same file.
TEST(BpeTokenizer, AddedTokensHonourTheirFlags) {
  json content = small_bpe();
  content["added_tokens"].push_back(added(704, "<l>", {{"lstrip", true}}));
  content["added_tokens"].push_back(added(705, "<r>", {{"rstrip", true}}));
  content["added_tokens"].push_back(
      added(706, "<lr>", {{"lstrip", true}, {"rstrip", true}, {"special", true}}));
  content["added_tokens"].push_back(
      added(707, "ab", {{"single_word", true}, {"normalized", true}}));
  content["added_tokens"].push_back(added(708, "\xe2\x84\xab", {{"normalized", true}}));
  content["added_tokens"].push_back(added(709, "<|im"));
  content["added_tokens"].push_back(added(710, "e\xcc\x81"));
  const auto tokenizer = load(content);
  EXPECT_EQ(tokenizer->vocab_size(), 711);
  EXPECT_EQ(tokenizer->encode("a <l> b"), (Ids{64, 704, 220, 65}));
  EXPECT_EQ(tokenizer->encode("a <r> \xe3\x80\x80"
                              "b"),
            (Ids{64, 220, 705, 65}));
  EXPECT_EQ(tokenizer->encode("x \n<lr> \t y"), (Ids{87, 706, 88}));
  EXPECT_EQ(tokenizer->encode("<l><r> <l>"), (Ids{704, 705, 704}));
  EXPECT_EQ(tokenizer->encode("ab xab abx ab,ab_ ab"),
            (Ids{707, 220, 87, 64, 65, 257, 65, 87, 220, 707, 11, 64, 65, 62, 220, 707}));
  EXPECT_EQ(tokenizer->encode("A\xcc\x8a \xe2\x84\xab \xc3\x85"), (Ids{708, 220, 708, 220, 708}));
  EXPECT_EQ(tokenizer->encode("<|im_start|><|im_"), (Ids{701, 709, 62}));  // the longest wins
  EXPECT_EQ(tokenizer->encode("e\xcc\x81 \xc3\xa9"), (Ids{710, 560}));     // before normalization
  EXPECT_EQ(tokenizer->decode(Ids{87, 706, 88}, true), "xy");
  EXPECT_EQ(tokenizer->decode(Ids{87, 706, 88}, false), "x<lr>y");
  EXPECT_EQ(tokenizer->token_to_id("<lr>"), 706);
}

TEST(BpeTokenizer, WordsAreTakenWholeOnlyWithIgnoreMerges) {
  json content = small_bpe();
  json& merges = content["model"]["merges"];
  merges.erase(merges.begin() + 50, merges.end());
  for (json& merge : merges)
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  EXPECT_EQ(load(content)->encode("wordwordword the hello helloo"),
            (Ids{305, 305, 305, 220, 83, 71, 68, 271, 75, 75, 78, 271, 75, 75, 78, 78}));
  content["model"]["ignore_merges"] = true;
  EXPECT_EQ(load(content)->encode("wordwordword the hello helloo"),
            (Ids{305, 305, 305, 220, 83, 71, 68, 606, 271, 75, 75, 78, 78}));
}

TEST(BpeTokenizer, ByteLevelPatternWithoutNormalizer) {
  json content = small_bpe();
  content["normalizer"] = nullptr;
  content["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const auto tokenizer = load(content);
  EXPECT_EQ(tokenizer->encode("don't 1234  x"),
            (Ids{274, 77, 396, 220, 16, 17, 18, 19, 220, 220, 87}));
  EXPECT_EQ(tokenizer->encode("e\xcc\x81 'S"), (Ids{68, 136, 223, 320, 50}));
}

TEST(BpeTokenizer, ForeignIdsAndIllFormedBytes) {
  const auto tokenizer = load_tokenizer(golden("small_bpe"));
  EXPECT_EQ(tokenizer->decode(Ids{-1, 704, INT32_MAX, INT32_MIN}, false), "");
  EXPECT_EQ(tokenizer->decode(Ids{64, 157, 65}, false),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(tokenizer->eos_token_id(), std::nullopt);
  EXPECT_EQ(tokenizer->token_to_id("no such token"), std::nullopt);
  expect_parts(message_of<DataError>([&] { tokenizer->encode("a\x80"); }),
               {"not UTF-8: byte 0x80 at offset 1"});
}

TEST(BpeTokenizer, EosTokenComesFromTheConfigBeside) {
  const ScratchFolder folder;
  folder.write("tokenizer.json", small_bpe().dump());
  const auto eos = [&](const char* config) {
    folder.write("tokenizer_config.json", config);
    return load_tokenizer(folder.path())->eos_token_id();
  };
  EXPECT_EQ(eos(R"({"eos_token": "<|im_end|>"})"), 702);
  EXPECT_EQ(eos(R"({"eos_token": {"content": "<|endoftext|>", "lstrip": false}})"), 700);
  EXPECT_EQ(eos(R"({"eos_token": null})"), std::nullopt);
  EXPECT_EQ(eos("{}"), std::nullopt);
  expect_parts(message_of<DataError>([&] { eos(R"({"eos_token": "<eos>"})"); }),
               {"eos_token \"<eos>\""});
  expect_parts(message_of<DataError>([&] { eos(R"({"eos_token": 7})"); }),
               {"tokenizer_config.json: eos_token is 7"});
}

TEST(BpeTokenizer, IncrementalDecodingNeverShowsHalfCharacters) {
  const auto tokenizer = load_tokenizer(golden("small_bpe"));
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    Ids ids;
    for (size_t i = random() % 12; i > 0; --i)
      ids.push_back(static_cast<int32_t>(random() % 720) - 5);
    IncrementalDecoder decoder(*tokenizer, round % 2 == 0);
    std::string joined;
    for (const int32_t id : ids) joined += decoder.push(id);
    ASSERT_EQ(joined + decoder.finish(), tokenizer->decode(ids, round % 2 == 0));
  }
  // A well-formed text never shows a replacement character on the way.
  const std::string text = "\xf0\x9f\x99\x82\xe6\x97\xa5\xe6\x9c\xac \xd9\x85\xd8\xb1\xc3\xa9";
  IncrementalDecoder decoder(*tokenizer, true);
  std::string joined;
  size_t num_held_back = 0;
  for (const int32_t id : tokenizer->encode(text)) {
    const std::string piece = decoder.push(id);
    EXPECT_EQ(piece.find("\xef\xbf\xbd"), std::string::npos);
    if (piece.empty()) ++num_held_back;
    joined += piece;
  }
  EXPECT_EQ(joined + decoder.finish(), text);
  EXPECT_GT(num_held_back, 0u);
}

TEST(BpeTokenizer, QwenLoadsQuicklyAndHostileTextStaysLinear) {
  const std::clock_t start = std::clock();
  const auto tokenizer = load_tokenizer(golden("qwen2_5"));
  EXPECT_EQ(tokenizer->vocab_size(), 151665);
  EXPECT_EQ(tokenizer->eos_token_id(), 151645);
  for (const char* unit :
       {" ", "\n", " \n", "a", "abcdefghijklmnopqrstuvwxyz", "0123456789", "\xcc\x81\xcc\x96",
        "<|im_start|", "<|im_end|>", "'s", "!", "\xf0\x9f\x99\x82", "\xe0\xbd\xb3\xe0\xbd\xb1"}) {
    std::string text;
    while (text.size() < (size_t{1} << 19)) text += unit;
    EXPECT_FALSE(tokenizer->encode(text).empty());
  }
  // Every one of these would take minutes if its cost were quadratic.
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 60.0);
}

struct Hostile {
  const char* pointer;  // what is replaced
  json value;
  const char* expected;
};

TEST(BpeTokenizer, WhatIsNotImplementedIsRefusedByKey) {
  const std::vector<Hostile> cases = {
      {"/model/type", "WordPiece", "model.type is \"WordPiece\"; only \"BPE\""},
      {"/model/type", 3, "model.type is 3, expected a string"},
      {"/model", nullptr, "model is missing"},
      {"/model", "BPE", "model is \"BPE\", expected an object"},
      {"/model/vocab", json::object(), "model.vocab is missing or empty"},
      {"/model/vocab", {"a", "b"}, "model.vocab is not an object"},
      {"/model/vocab", 7, "model.vocab is not an object"},
      {"/model/vocab/!", -1, "model.vocab \"!\" is -1; token ids are 0 to"},
      {"/model/vocab/!", 1.5, "model.vocab \"!\" is 1.5; token ids"},
      {"/model/vocab/!", 4000000000, "model.vocab \"!\" is 4000000000; token ids"},
      {"/model/vocab/!", json::array({1}), "model.vocab \"!\" is not a token id"},
      {"/model/vocab/!", json::object({{"a", 1}}), "model.vocab \"!\" is not a token id"},
      {"/model/vocab/!", 5, "has id 5, as another token"},
      {"/model/merges", json::object(), "model.merges is not a list"},
      {"/model/merges", "a b", "model.merges is not a list"},
      {"/model/merges/2", "ab", "model.merges[2] is \"ab\"; two pieces"},
      {"/model/merges/2", "a b c", "model.merges[2] is \"a b c\"; two pieces"},
      {"/model/merges/2", {"a"}, "model.merges[2] is neither"},
      {"/model/merges/2", {"a", "b", "c"}, "model.merges[2] is neither"},
      {"/model/merges/2", {"a", 1}, "model.merges[2] is neither"},
      {"/model/merges/2", 12, "model.merges[2] is neither"},
      {"/model/merges/2", {"a", json::array()}, "model.merges[2] is neither"},
      {"/model/merges/2", "a nopiece",
       "model.merges[2] needs \"anopiece\", which is not in model.vocab"},
      {"/model/dropout", 0.1, "model.dropout is 0.1; only null"},
      {"/model/byte_fallback", true, "model.byte_fallback is true; only false"},
      {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix is \"</w>\"; only null"},
      {"/model/continuing_subword_prefix", "##",
       "model.continuing_subword_prefix is \"##\"; only null"},
      {"/model/ignore_merges", 1, "model.ignore_merges is 1; true or false"},
      {"/normalizer/type", "NFKC", "normalizer.type is \"NFKC\"; \"NFC\" or no normalizer"},
      {"/normalizer", json::array(), "normalizer is a list of 0, expected an object"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer is missing; ByteLevel"},
      {"/pre_tokenizer/type", "Whitespace", "pre_tokenizer.type is \"Whitespace\"; \"ByteLevel\""},
      {"/pre_tokenizer/pretokenizers", json::array(),
       "pre_tokenizer.pretokenizers is a list of 0; a list"},
      {"/pre_tokenizer/pretokenizers/0/type", "Digits",
       "pretokenizers[0].type is \"Digits\"; \"Split\""},
      {"/pre_tokenizer/pretokenizers/1/type", "Split",
       "pretokenizers[1].type is \"Split\"; \"ByteLevel\""},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true,
       "add_prefix_space is true; only false"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Removed",
       "behavior is \"Removed\"; only \"Isolated\""},
      {"/pre_tokenizer/pretokenizers/0/invert", true, "invert is true; only false"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}, "pattern.Regex is missing"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(",
       "pre_tokenizer: pattern \"(\" does not compile"},
      {"/decoder", nullptr, "decoder is missing"},
      {"/decoder/type", "Metaspace", "decoder.type is \"Metaspace\"; only \"ByteLevel\""},
      {"/added_tokens", 1, "added_tokens is 1, expected a list"},
      {"/added_tokens/0", "x", "added_tokens[0] is \"x\", expected an object"},
      {"/added_tokens/0/id", -2, "added_tokens[0].id is -2; token ids"},
      {"/added_tokens/0/id", nullptr, "added_tokens[0].id is null; token ids"},
      {"/added_tokens/0/id", 701, "has id 701, as another token"},
      {"/added_tokens/0/content", "hello", "added token \"hello\" has id 700, but also 446"},
      {"/added_tokens/0/content", "", "added_tokens[0].content is \"\"; a text"},
      {"/added_tokens/0/special", "yes", "added_tokens[0].special is \"yes\"; true or false"}};
  for (const Hostile& item : cases) {
    SCOPED_TRACE(std::string(item.pointer) + " = " + item.value.dump());
    json content = small_bpe();
    content[json::json_pointer(item.pointer)] = item.value;
    expect_parts(refusal(content), {"tokenizer.json: ", item.expected});
  }
}

TEST(BpeTokenizer, AnUnknownTokenIsOnlyAllowedWhenNeverNeeded) {
  json content = small_bpe();
  content["model"]["unk_token"] = "<|endoftext|>";
  EXPECT_EQ(load(content)->encode("hello"), Ids{446});
  content["model"]["merges"] = json::array();
  content["model"]["vocab"].erase("q");
  expect_parts(refusal(content), {"model.unk_token is set and byte 0x71 has no token"});
  content["model"]["unk_token"] = nullptr;
  EXPECT_EQ(load(content)->encode("aqa"), (Ids{64, 64}));
}

TEST(BpeTokenizer, FilesThatAreNotJsonAreRefused) {
  const ScratchFolder folder;
  const auto problem = [&](const std::string& text) {
    const auto path = folder.write("tokenizer.json", text);
    return message_of<DataError>([&] { load_tokenizer(path); });
  };
  expect_parts(problem(""), {"tokenizer.json: not valid JSON"});
  expect_parts(problem("{\"model\": {\"vocab\": {\"a\": 1, "), {"tokenizer.json: not valid JSON"});
  expect_parts(problem("[]"), {"tokenizer.json: holds a list of 0, expected an object"});
  expect_parts(problem("{}"), {"tokenizer.json: model is missing (not a tokenizer.json?)"});
  expect_parts(problem(R"({"model": {"vocab": {"a": 1, "a": 2}}})"),
               {"tokenizer.json: duplicate key \"a\""});
  expect_parts(problem(R"({"model": {"vocab": {"a": 1}}, "model": {}})"),
               {"tokenizer.json: duplicate key \"model\""});
  expect_parts(problem("{\"model\": {\"vocab\": {\"\xff\": 1}}}"),
               {"tokenizer.json: not valid JSON"});
  expect_parts(problem(std::string(1000, '[')), {"tokenizer.json: JSON nested deeper"});
  expect_parts(message_of<DataError>([&] { load_tokenizer(folder.path() / "none.json"); }),
               {"none.json: No such file"});
}

}  // namespace
}  // namespace grpo::model
