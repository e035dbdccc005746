#include "app/text/text_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "model/core/errors.h"
#include "tests/app/scratch_folder.h"

namespace grpo::app {
namespace {

TEST(TextFile, OutputOverTheInputIsRefused) {
  const testing::ScratchFolder folder;
  const std::filesystem::path root = folder.path();
  std::ofstream(root / "in.jsonl") << "{}\n";
  std::ofstream(root / "other.jsonl") << "{}\n";
  std::filesystem::create_symlink("in.jsonl", root / "link.jsonl");
  EXPECT_THROW(refuse_output_over_input(root / "in.jsonl", root / "in.jsonl"), ConfigError);
  EXPECT_THROW(refuse_output_over_input(root / "in.jsonl", root / "link.jsonl"), ConfigError);
  EXPECT_NO_THROW(refuse_output_over_input(root / "in.jsonl", root / "other.jsonl"));
  EXPECT_NO_THROW(refuse_output_over_input(root / "in.jsonl", root / "new.jsonl"));
  EXPECT_NO_THROW(refuse_output_over_input(root / "missing.jsonl", root / "missing.jsonl"));
}

}  // namespace
}  // namespace grpo::app
