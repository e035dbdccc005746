// Every kept seed, and damaged copies of it, through its target: a fuzzer without a fuzzer, in
// every build. tools/fuzz.sh runs the real one.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "model/core/counter_rng.h"
#include "tests/fuzz/fuzz_targets.h"

namespace grpo::fuzz {
namespace {

struct Target {
  const char* name;  // and folder of its seeds
  void (*run)(std::string_view);
};

class FuzzReplay : public ::testing::TestWithParam<Target> {};

std::vector<std::filesystem::path> seeds_of(const char* target) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(GRPO_SOURCE_DIR) / "tests/fuzz/seeds" / target)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Draw `index` of a damaged copy: cut off, a byte changed, a piece repeated or left out.
std::string damaged(std::string bytes, uint64_t stream, uint64_t copy) {
  const auto draw = [&](uint64_t index, size_t below) {
    return static_cast<size_t>(uniform_at(7, stream, copy, index) * static_cast<double>(below));
  };
  if (bytes.empty()) return bytes;
  const size_t place = draw(0, bytes.size());
  const size_t length = draw(1, std::min<size_t>(bytes.size() - place, 16) + 1);
  constexpr std::string_view kNasty("\x00\xFF\x7F{}[]\":,-9e.\n\\", 16);
  switch (copy % 4) {
    case 0:
      return bytes.substr(0, place);
    case 1:
      bytes[place] = kNasty[draw(2, kNasty.size())];
      return bytes;
    case 2:
      return bytes.insert(place, bytes.substr(place, length));
    default:
      return bytes.erase(place, length);
  }
}

TEST_P(FuzzReplay, SeedsAndDamagedCopiesGiveNothingButOurErrors) {
  const std::vector<std::filesystem::path> seeds = seeds_of(GetParam().name);
  ASSERT_FALSE(seeds.empty());
  const uint64_t num_copies = std::max<uint64_t>(8, 1500 / seeds.size());
  for (const std::filesystem::path& seed : seeds) {
    SCOPED_TRACE(seed.string());
    const std::string bytes = bytes_of(seed);
    ASSERT_NO_THROW(GetParam().run(bytes));
    for (uint64_t copy = 0; copy < num_copies; ++copy) {
      ASSERT_NO_THROW(GetParam().run(damaged(bytes, hash_name(seed.filename().string()), copy)))
          << "copy " << copy;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzReplay,
                         ::testing::Values(Target{"safetensors", fuzz_safetensors},
                                           Target{"tokenizer_json", fuzz_tokenizer_json},
                                           Target{"yaml_config", fuzz_yaml_config},
                                           Target{"jsonl", fuzz_jsonl},
                                           Target{"model_config", fuzz_model_config}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace grpo::fuzz
