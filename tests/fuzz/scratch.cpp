#include <filesystem>

#include "tests/app/scratch_folder.h"
#include "tests/fuzz/fuzz_targets.h"

namespace grpo::fuzz {

namespace {

const testing::ScratchFolder& folder() {
  static const testing::ScratchFolder scratch;
  return scratch;
}

}  // namespace

const std::string& scratch_folder() { return folder().path(); }

std::string scratch_file(const std::string& name, std::string_view bytes) {
  return folder().write(name, std::string(bytes));
}

}  // namespace grpo::fuzz
