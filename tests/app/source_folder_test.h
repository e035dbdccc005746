// Tests that read the project's configs and data by their relative paths.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace grpo::app {

class SourceFolderTest : public ::testing::Test {
 protected:
  explicit SourceFolderTest(const std::filesystem::path& source_folder)
      : start_folder_(std::filesystem::current_path()) {
    ::alarm(100);  // a hang ends the program
    std::filesystem::current_path(source_folder);
  }
  ~SourceFolderTest() override {
    std::filesystem::current_path(start_folder_);
    ::alarm(0);
  }

 private:
  std::filesystem::path start_folder_;
};

}  // namespace grpo::app
