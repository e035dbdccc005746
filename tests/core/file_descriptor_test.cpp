#include "model/core/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace grpo {
namespace {

bool is_open(int descriptor) { return ::fcntl(descriptor, F_GETFD) >= 0; }

FileDescriptor null_device() { return FileDescriptor::open("/dev/null", O_RDWR); }

TEST(FileDescriptor, IsClosedAtItsEnd) {
  int descriptor = -1;
  {
    const FileDescriptor file = null_device();
    ASSERT_TRUE(file.is_open());
    descriptor = file.get();
    EXPECT_EQ(::fcntl(descriptor, F_GETFD), FD_CLOEXEC);
  }
  EXPECT_FALSE(is_open(descriptor));
}

TEST(FileDescriptor, AMoveHandsOverAndClosesWhatWasHeld) {
  FileDescriptor first = null_device();
  FileDescriptor second = null_device();
  const int kept = first.get();
  const int dropped = second.get();
  second = std::move(first);
  EXPECT_FALSE(is_open(dropped));
  const FileDescriptor third(std::move(second));
  EXPECT_EQ(third.get(), kept);
  EXPECT_TRUE(is_open(kept));
  for (const FileDescriptor* moved : {&first, &second}) EXPECT_FALSE(moved->is_open());
}

TEST(FileDescriptor, WhatCannotBeOpenedSaysWhy) {
  const FileDescriptor file = FileDescriptor::open("/dev/null/none", O_RDONLY);
  EXPECT_EQ(errno, ENOTDIR);
  EXPECT_FALSE(file.is_open());
}

TEST(FileDescriptor, CloseTellsTheSystemsAnswerAndItsEndKeepsErrno) {
  FileDescriptor file = null_device();
  EXPECT_TRUE(file.close());
  EXPECT_FALSE(file.is_open());
  EXPECT_TRUE(file.close());  // nothing is held
  {
    const FileDescriptor closed_elsewhere(null_device());
    ::close(closed_elsewhere.get());
    errno = ENOSPC;
  }
  EXPECT_EQ(errno, ENOSPC);
  FileDescriptor closed_elsewhere = null_device();
  ::close(closed_elsewhere.get());
  EXPECT_FALSE(closed_elsewhere.close());
  EXPECT_EQ(errno, EBADF);
}

}  // namespace
}  // namespace grpo
