// Configs from text, and their error messages, for the tests of the config reader.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "app/config/yaml_config_reader.h"
#include "model/core/errors.h"
#include "tests/app/scratch_folder.h"

namespace grpo::app {

inline rl::RunConfig load(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const testing::ScratchFolder folder;
  return load_run_config(folder.write("c.yaml", text), overrides);
}

// The message of the ConfigError that the file gives, without the scratch folder; "" when it is
// read.
inline std::string error_of(const std::string& text,
                            const std::vector<std::string>& overrides = {}) {
  const testing::ScratchFolder folder;
  const std::string path = folder.write("c.yaml", text);
  try {
    load_run_config(path, overrides);
  } catch (const ConfigError& error) {
    std::string message = error.what();
    for (size_t at = message.find(path); at != std::string::npos; at = message.find(path)) {
      message.replace(at, path.size(), "c.yaml");
    }
    return message;
  }
  return "";
}

inline constexpr const char* kLeast =
    "policy: {model_name: custom}\ndata: {train: {path: d.jsonl}}\n";

inline std::string with(const std::string& more) { return kLeast + more; }

struct BadCase {
  const char* name;
  std::string text;
  std::vector<std::string> overrides;
  std::string message;  // whole
};

inline void PrintTo(const BadCase& bad, std::ostream* out) { *out << bad.name; }

inline std::string case_name(const ::testing::TestParamInfo<BadCase>& test) {
  return test.param.name;
}

// The message is the expected one, on one line.
inline void expect_message(const BadCase& bad) {
  const std::string message = error_of(bad.text, bad.overrides);
  EXPECT_EQ(message, bad.message);
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 0);
}

}  // namespace grpo::app
