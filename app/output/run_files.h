// RunFiles: what a run leaves in its log_dir. Written by world rank 0, from one thread.
//   config.yaml            the resolved config
//   metrics.jsonl          a line a step: {"step": 1, "train/loss": 0.25, ...}; step 0 is setup
//   metrics.json           {"train/loss": {"1": 0.25, "2": ...}, ...}, rewritten after each step
//   samples/step_N.jsonl   the completions of a step, or .jsonl.gz; fields: rl/loop/sample_record.h
//   samples/step_N.kept    the tokens that the sampling filters kept, gzip
// Numbers are the shortest text that reads back to the same double; a non-finite one is "nan",
// "inf" or "-inf".
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/text/text_file.h"
#include "rl/state/metrics.h"

namespace grpo::app {

// Throws ConfigError when `log_dir` holds metrics.jsonl of an earlier run and `overwrite` is not
// set.
void refuse_used_log_dir(const std::filesystem::path& log_dir, bool overwrite);

// What becomes of an earlier run's files in the folder.
struct EarlierRun {
  bool overwrite = false;  // remove them
  std::optional<int64_t>
      continue_after;  // keep the steps up to this one and append (a resumed run)
};

class RunFiles {
 public:
  // Looks at what an earlier run left and changes none of it: that comes with the first write, so
  // that a run that fails before it leaves everything as it was. Throws ConfigError as above;
  // DataError for a folder that cannot be made, and (file, line) when the run to continue left
  // lines that are no metrics or not in the order of their steps.
  RunFiles(std::filesystem::path log_dir, const EarlierRun& earlier);

  // Of the run to continue: steps that metrics.jsonl lacks.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // All throw DataError naming the file that cannot be written.
  void write_config(const std::string& yaml);
  void write_step(int64_t step, const rl::MetricSet& metrics);
  // Nothing where no sample is recorded.
  void write_samples(int64_t step, const rl::SampleBatch& samples, bool compress);

  const std::filesystem::path& log_dir() const { return log_dir_; }

 private:
  std::string metrics_json() const;
  void read_steps(int64_t last_step);
  void read_step(const std::string& line, const std::string& where, int64_t last_step);
  void begin();
  void add_to_series(int64_t step, const std::string& name, const std::string& number);

  std::filesystem::path log_dir_;
  EarlierRun earlier_;
  std::vector<std::string> warnings_;
  std::string kept_lines_;              // of the run to continue
  std::optional<int64_t> newest_step_;  // in metrics.jsonl
  std::optional<LineFile> metrics_lines_;
  std::vector<std::string> names_;             // metrics in the order they first came
  std::map<std::string, std::string> series_;  // name -> "\"1\": 0.25, \"2\": 0.5"
};

}  // namespace grpo::app
