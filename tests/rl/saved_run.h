// What tests of saved and resumed runs share: files as text, metrics that belong
// to the machine.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "model/core/errors.h"
#include "tests/rl/trained_model.h"
#include "tests/temporary_folder.h"

namespace grpo::testing {

inline std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ostringstream text;
    text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
    files[entry.path().filename().string()] = text.str();
  }
  return files;
}

inline bool belongs_to_the_machine(const std::string& name) {
  for (const char* prefix : {"timing/", "performance/", "memory/", "refit/seconds"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

// Counts of what travels between ranks.
inline bool belongs_to_the_layout(const std::string& name) {
  return name.starts_with("gtp/") || name == "refit/remote_bytes";
}

// ... of runs at different gtp_remat: all but those of machine and layout.
inline void expect_same_metrics_at_any_gtp(const std::map<std::string, double>& actual,
                                           const std::map<std::string, double>& expected) {
  int num_compared = 0;
  for (const auto& [name, value] : expected) {
    if (belongs_to_the_machine(name) || belongs_to_the_layout(name)) continue;
    ASSERT_TRUE(actual.contains(name)) << name;
    EXPECT_EQ(std::bit_cast<uint64_t>(actual.at(name)), std::bit_cast<uint64_t>(value))
        << name << ": " << actual.at(name) << " and " << value;
    ++num_compared;
  }
  EXPECT_GT(num_compared, 30);
}

// All metrics of a step but those of the machine have equal bits.
inline void expect_same_metrics(const std::map<std::string, double>& actual,
                                const std::map<std::string, double>& expected) {
  for (const auto& [name, value] : expected) {
    if (belongs_to_the_machine(name)) continue;
    ASSERT_TRUE(actual.contains(name)) << name;
    EXPECT_EQ(std::bit_cast<uint64_t>(actual.at(name)), std::bit_cast<uint64_t>(value))
        << name << ": " << actual.at(name) << " and " << value;
  }
}

// k + m steps against k, save, resume, m.
inline void expect_same_runs(const RecordedRun& whole, const RecordedRun& first,
                             const RecordedRun& second) {
  ASSERT_EQ(whole.steps.size(), first.steps.size() + second.steps.size());
  for (size_t step = 0; step < whole.steps.size(); ++step) {
    SCOPED_TRACE(fmt::format("step {}", step + 1));
    const bool is_first = step < first.steps.size();
    expect_same_metrics(is_first ? first.steps[step] : second.steps[step - first.steps.size()],
                        whole.steps[step]);
  }
}

inline void expect_same_files(const std::filesystem::path& actual,
                              const std::filesystem::path& expected) {
  const auto expected_files = files_of(expected);
  const auto actual_files = files_of(actual);
  EXPECT_GT(expected_files.size(), 3u);
  for (const auto& [name, bytes] : expected_files) {
    ASSERT_TRUE(actual_files.contains(name)) << name;
    EXPECT_TRUE(actual_files.at(name) == bytes) << name;
  }
}

}  // namespace grpo::testing
