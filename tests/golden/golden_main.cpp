// Runs every golden case under a folder and prints a line a case:
//   golden_test [FOLDER]     else GRPO_GOLDEN_DIR, else tests/data/golden
// Exit code 1 when a case fails or none is found.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/golden/case_kinds.h"
#include "tests/golden/golden_json.h"
#include "tests/golden/qwen2_cases.h"
#include "tests/golden/tokenizer_cases.h"

namespace grpo::golden {

namespace {

namespace fs = std::filesystem;

const fs::path kDefaultFolder = fs::path(GRPO_TEST_DATA_DIR) / "golden";

// Files that belong to a model or a tokenizer and hold no cases.
const std::set<std::string> kCompanionFiles{"config.json",       "generation_config.json",
                                            "tokenizer.json",    "tokenizer_config.json",
                                            "added_tokens.json", "special_tokens_map.json",
                                            "vocab.json",        "model.safetensors.index.json"};

class GoldenRun {
 public:
  explicit GoldenRun(const fs::path& root) : root_(fs::canonical(root)) {}

  void run_all();
  // Prints the summary; the process's exit code.
  int finish() const;

 private:
  void run_file(const fs::path& path);
  void run_cases(const fs::path& path, const nlohmann::json& cases);
  template <typename Runner>
  void run_folder(const fs::path& folder, const char* kind, Runner runner);
  void report(const CaseResult& result, const fs::path& path);

  fs::path root_;
  std::set<fs::path> tokenizer_folders_;
  std::map<CaseResult::Status, int> counts_;
};

void GoldenRun::report(const CaseResult& result, const fs::path& path) {
  ++counts_[result.status];
  const fs::path relative = path == root_ ? root_.filename() : path.lexically_relative(root_);
  const std::string which = fmt::format("{} {} {}", result.kind, relative.string(), result.name);
  switch (result.status) {
    case CaseResult::Status::kPass:
      fmt::print("PASS {}: {}\n", which, result.detail);
      break;
    case CaseResult::Status::kFail:
      fmt::print("FAIL {}: {}\n", which, result.detail);
      break;
    case CaseResult::Status::kUnsupported:
      fmt::print("unsupported: {} ({})\n", result.detail, which);
      break;
    case CaseResult::Status::kNotRun:
      fmt::print("not run: {} ({})\n", result.detail, which);
      break;
  }
  std::fflush(stdout);
}

template <typename Runner>
void GoldenRun::run_folder(const fs::path& folder, const char* kind, Runner runner) {
  try {
    for (const CaseResult& result : runner()) report(result, folder);
  } catch (const std::exception& error) {
    report({kind, "all", CaseResult::Status::kFail, error.what()}, folder);
  }
}

void GoldenRun::run_cases(const fs::path& path, const nlohmann::json& cases) {
  for (size_t i = 0; i < cases.size(); ++i) {
    if (is_tokenizer_case(cases[i])) {
      tokenizer_folders_.insert(path.parent_path());
      continue;
    }
    const bool is_named =
        cases[i].is_object() && cases[i].contains("name") && cases[i].at("name").is_string();
    report(run_json_case(cases[i],
                         is_named ? cases[i].at("name").get<std::string>() : fmt::format("#{}", i)),
           path);
  }
}

void GoldenRun::run_file(const fs::path& path) {
  nlohmann::json content;
  try {
    content = read_golden_json(path);
  } catch (const std::exception& error) {
    report({"json", "all", CaseResult::Status::kFail, error.what()}, path);
    return;
  }
  const bool has_cases = content.is_object() && content.contains("cases");
  if (has_cases && !content.at("cases").is_array())
    report({"json", "all", CaseResult::Status::kFail, "\"cases\" is not a list"}, path);
  else if (has_cases)
    run_cases(path, content.at("cases"));
  else
    run_cases(path, content.is_array() ? content : nlohmann::json::array({content}));
}

void GoldenRun::run_all() {
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(root_, fs::directory_options::follow_directory_symlink))
    if (entry.is_regular_file()) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    if (path.filename() == "expected.safetensors")
      run_folder(path.parent_path(), "qwen2", [&] { return run_qwen2_cases(path.parent_path()); });
    else if (path.extension() == ".json" && !kCompanionFiles.contains(path.filename().string()))
      run_file(path);
  }
  for (const fs::path& folder : tokenizer_folders_)
    run_folder(folder, "tokenizer",
               [&] { return run_tokenizer_cases(folder, kDefaultFolder / folder.filename()); });
}

int GoldenRun::finish() const {
  const auto count = [&](CaseResult::Status status) {
    const auto found = counts_.find(status);
    return found == counts_.end() ? 0 : found->second;
  };
  const int num_failed = count(CaseResult::Status::kFail);
  fmt::print("golden cases: {} passed, {} failed, {} unsupported, {} not run\n",
             count(CaseResult::Status::kPass), num_failed, count(CaseResult::Status::kUnsupported),
             count(CaseResult::Status::kNotRun));
  if (counts_.empty()) fmt::print("no golden case found under {}\n", root_.string());
  return num_failed > 0 || counts_.empty() ? 1 : 0;
}

fs::path golden_folder(int argc, char** argv) {
  if (argc > 1) return argv[1];
  const char* from_environment = std::getenv("GRPO_GOLDEN_DIR");
  return from_environment != nullptr ? fs::path(from_environment) : kDefaultFolder;
}

}  // namespace

}  // namespace grpo::golden

int main(int argc, char** argv) {
  const std::filesystem::path folder = grpo::golden::golden_folder(argc, argv);
  try {
    grpo::golden::GoldenRun run(folder);
    run.run_all();
    return run.finish();
  } catch (const std::exception& error) {
    fmt::print(stderr, "golden_test {}: {}\n", folder.string(), error.what());
    return 1;
  }
}
