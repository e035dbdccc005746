#include <gtest/gtest.h>

#include "model/core/errors.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/model/scratch_folder.h"

namespace grpo::model {
namespace {

using Ids = std::vector<int32_t>;

std::filesystem::path data(const char* name) {
  return std::filesystem::path(GRPO_TEST_DATA_DIR) / "sentencepiece" / name;
}

Ids ids_of(const Tokenizer& tokenizer, std::initializer_list<const char*> pieces) {
  Ids ids;
  for (const char* piece : pieces) ids.push_back(tokenizer.token_to_id(piece).value());
  return ids;
}

TEST(SentencePieceTokenizer, DigitsAreOnePieceEach) {
  const auto tokenizer = load_tokenizer(data("arithmetic.model"));
  EXPECT_EQ(tokenizer->vocab_size(), 80);
  EXPECT_EQ(tokenizer->eos_token_id(), 1);
  EXPECT_EQ(tokenizer->encode("12+7=19"), ids_of(*tokenizer, {"1", "2", "+", "7", "=", "1", "9"}));
  EXPECT_TRUE(tokenizer->encode("").empty());
}

TEST(SentencePieceTokenizer, TextComesBackUnchanged) {
  const auto tokenizer = load_tokenizer(data("arithmetic.model"));
  for (const char* text : {"12+7=19", " how  many are left? ", "   ", "sum of 3 and 4", "0"}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text), true), text);
  }
}

TEST(SentencePieceTokenizer, ControlTokensAndForeignIdsGiveNoText) {
  const auto tokenizer = load_tokenizer(data("arithmetic.model"));
  Ids ids = tokenizer->encode("4+4=8");
  ids.push_back(tokenizer->eos_token_id().value());
  EXPECT_EQ(tokenizer->decode(ids, true), "4+4=8");
  EXPECT_EQ(tokenizer->decode(ids, false), "4+4=8</s>");
  EXPECT_EQ(tokenizer->decode(Ids{-1, 80, 1000000, INT32_MAX, INT32_MIN}, false), "");
  // The control token's text in a prompt is text, not the token.
  for (const int32_t id : tokenizer->encode("</s>")) EXPECT_NE(id, tokenizer->eos_token_id());
}

TEST(SentencePieceTokenizer, UnknownCharactersBecomeTheUnknownPiece) {
  const auto tokenizer = load_tokenizer(data("arithmetic.model"));
  EXPECT_EQ(tokenizer->encode("1\xc3\xa9"), (Ids{tokenizer->token_to_id("1").value(), 0}));
  EXPECT_EQ(tokenizer->decode(Ids{0}, true), "?");
}

TEST(SentencePieceTokenizer, TokenToIdWantsTheWholePiece) {
  const auto tokenizer = load_tokenizer(data("arithmetic.model"));
  EXPECT_EQ(tokenizer->token_to_id("</s>"), 1);
  EXPECT_EQ(tokenizer->token_to_id("<unk>"), 0);
  EXPECT_EQ(tokenizer->token_to_id("no such piece"), std::nullopt);
  EXPECT_EQ(tokenizer->token_to_id(""), std::nullopt);
}

TEST(SentencePieceTokenizer, DummyPrefixIsDroppedOnlyAtTheStart) {
  const auto tokenizer = load_tokenizer(data("dummy_prefix.model"));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("how many"), true), "how many");
  const Ids how = tokenizer->encode("how");
  Ids twice = how;
  twice.insert(twice.end(), how.begin(), how.end());
  EXPECT_EQ(tokenizer->decode(twice, true), "how how");
  twice.insert(twice.begin(), tokenizer->token_to_id("<sep>").value());
  EXPECT_EQ(tokenizer->decode(twice, true), "how how");
  EXPECT_EQ(tokenizer->decode(twice, false), "<sep>how how");
  EXPECT_EQ(tokenizer->encode("<user>").back(), tokenizer->token_to_id("<user>"));
}

TEST(SentencePieceTokenizer, BytePiecesJoinToCharacters) {
  const auto tokenizer = load_tokenizer(data("dummy_prefix.model"));
  const std::string text = "na\xc3\xafve \xf0\x9f\x99\x82";
  const Ids ids = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->decode(ids, true), text);
  IncrementalDecoder decoder(*tokenizer, true);
  std::string joined;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_EQ(piece.find("\xef\xbf\xbd"), std::string::npos);
    joined += piece;
  }
  EXPECT_EQ(joined + decoder.finish(), text);
  // Cut inside the emoji: the half character shows only when the end is certain.
  std::string cut;
  for (const int32_t id : std::span(ids).first(ids.size() - 1)) cut += decoder.push(id);
  EXPECT_EQ(cut, "na\xc3\xafve ");
  EXPECT_EQ(decoder.finish(), "\xef\xbf\xbd");
}

TEST(SentencePieceTokenizer, TextThatIsNotUtf8IsRefused) {
  const auto tokenizer = load_tokenizer(data("arithmetic.model"));
  for (const char* text :
       {"1+1\xff", "\x80", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "ab\xe2\x82"}) {
    expect_parts(message_of<DataError>([&] { tokenizer->encode(text); }),
                 {"not UTF-8: byte 0x", "at offset"});
  }
}

TEST(SentencePieceTokenizer, DamagedFilesAreRefused) {
  const ScratchFolder folder;
  const auto problem = [&](const std::filesystem::path& path) {
    return message_of<DataError>([&] { load_tokenizer(path); });
  };
  expect_parts(problem(folder.path()), {"holds neither tokenizer.json nor tokenizer.model"});
  expect_parts(problem(folder.path() / "none.model"), {"none.model: No such file"});
  std::ifstream file(data("arithmetic.model"), std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(file), {});
  expect_parts(problem(folder.write("a.model", "")), {"a.model: "});
  expect_parts(problem(folder.write("b.model", whole.substr(0, 500))),
               {"b.model: not a SentencePiece model"});
  expect_parts(problem(folder.write("c.model", "{\"this\": \"is not a model\"}")),
               {"c.model: not a SentencePiece"});
  folder.write("tokenizer.model", whole);
  EXPECT_EQ(load_tokenizer(folder.path())->vocab_size(), 80);
}

}  // namespace
}  // namespace grpo::model
