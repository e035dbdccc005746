#include "model/files/input_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "model/core/errors.h"
#include "tests/app/scratch_folder.h"

namespace grpo::model {
namespace {

TEST(InputFile, OnlyRegularFilesAreOpened) {
  const testing::ScratchFolder folder;
  const std::string file = folder.write("file", "text");
  const std::string pipe = folder.path() + "/pipe";
  const std::string circle = folder.path() + "/circle";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink(circle, circle);
  EXPECT_EQ(input_problem(file), std::nullopt);
  EXPECT_EQ(input_problem(folder.path()), "is a folder; allowed: a regular file");
  ASSERT_EQ(input_problem(pipe), "is a pipe; allowed: a regular file");
  EXPECT_EQ(input_problem("/dev/zero"), "is a device; allowed: a regular file");
  EXPECT_EQ(input_problem(circle), "Too many levels of symbolic links");
  EXPECT_EQ(input_problem(file + "/below"), "Not a directory");
  EXPECT_EQ(input_problem(folder.path() + "/" + std::string(300, 'x')), "File name too long");
  EXPECT_THROW(open_input(pipe), DataError);
  std::string text;
  open_input(file) >> text;
  EXPECT_EQ(text, "text");
}

// Where std::filesystem::exists would throw.
TEST(InputFile, PresenceIsAskedWithoutThrowing) {
  const testing::ScratchFolder folder;
  const std::string circle = folder.path() + "/circle";
  std::filesystem::create_symlink(circle, circle);
  EXPECT_TRUE(is_present(circle));
  EXPECT_FALSE(is_folder(circle));
  EXPECT_TRUE(is_folder(folder.path()));
  EXPECT_FALSE(is_present(folder.path() + "/" + std::string(300, 'x')));
}

}  // namespace
}  // namespace grpo::model
