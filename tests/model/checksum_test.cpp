#include "model/files/checksum.h"

#include <gtest/gtest.h>

#include "model/core/errors.h"
#include "tests/model/scratch_folder.h"

namespace grpo::model {
namespace {

uint64_t checksum_of(std::string_view text, size_t piece) {
  Checksum64 checksum;
  for (size_t begin = 0; begin < text.size(); begin += piece) {
    checksum.add(std::as_bytes(std::span(text.substr(begin, piece))));
  }
  return checksum.value();
}

// Published values of XXH64 with seed 0.
TEST(Checksum, AgreesWithXxh64) {
  EXPECT_EQ(checksum_text(Checksum64().value()), "ef46db3751d8e999");
  EXPECT_EQ(checksum_of("a", 1), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(checksum_of("abc", 3), 0x44bc2cf5ad770999u);
  EXPECT_EQ(checksum_of("Nobody inspects the spammish repetition", 100), 0xfbcea83c8a378bf1u);
}

TEST(Checksum, DoesNotDependOnThePieces) {
  std::string text;
  for (int i = 0; i < 1003; ++i) text += static_cast<char>(i * 7 + i / 11);
  const uint64_t whole = checksum_of(text, text.size());
  for (const size_t piece : {1, 3, 8, 31, 32, 33, 64, 500})
    EXPECT_EQ(checksum_of(text, piece), whole);
  text[777] ^= 1;
  EXPECT_NE(checksum_of(text, 32), whole);
}

TEST(Checksum, OfAFile) {
  const ScratchFolder folder;
  folder.write("abc", "abc");
  EXPECT_EQ(checksum_of_file(folder.path() / "abc").value(), 0x44bc2cf5ad770999u);
  EXPECT_EQ(checksum_of_file(folder.path() / "abc").num_bytes(), 3u);
  EXPECT_THROW(checksum_of_file(folder.path() / "none"), DataError);
  EXPECT_THROW(checksum_of_file(folder.path()), DataError);
}

}  // namespace
}  // namespace grpo::model
