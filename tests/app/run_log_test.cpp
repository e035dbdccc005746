#include "app/output/run_log.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "tests/app/scratch_folder.h"

namespace grpo::app {
namespace {

using testing::ScratchFolder;

rl::MetricSet step_metrics() {
  rl::MetricSet metrics;
  metrics.set("train/reward", 0.53125);
  metrics.set("train/loss", 0.0123456789);
  metrics.set("train/grad_norm", 0.5);
  metrics.set("train/token_mult_prob_error", 1.0000000001);
  metrics.set("train/mismatch_count", 3);
  metrics.set("train/mismatch_tokens_checked", 812);
  return metrics;
}

// Lines without their time stamp.
std::vector<std::string> lines_of(const std::ostringstream& out) {
  std::vector<std::string> lines;
  std::istringstream in(out.str());
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line.starts_with("[") ? line.substr(line.find("] ") + 2) : line);
  }
  return lines;
}

TEST(RunLog, AStepGoesToTheFilesAndToAnAlignedBlock) {
  const ScratchFolder folder;
  std::ostringstream out;
  Console console(out, false);
  RunFiles files(folder.path(), {});
  RunLog log(files, console, 10, rl::LoggerConfig{});
  log.on_step(3, step_metrics());
  const std::vector<std::string> lines = lines_of(out);
  ASSERT_EQ(lines.size(), 4u) << out.str();
  EXPECT_EQ(lines[0], "step 3 of 10");
  EXPECT_EQ(lines[1], "  reward                      0.53125");
  EXPECT_EQ(lines[2], "  loss                       0.012346  grad_norm              0.5");
  EXPECT_EQ(lines[3], "  token_mult_prob_error  1.0000000001  mismatches        3 of 812");
  EXPECT_NE(folder.read("metrics.jsonl").find("\"train/loss\": 0.0123456789"), std::string::npos);
}

TEST(RunLog, SetupIsWrittenButNotShownAsAStep) {
  const ScratchFolder folder;
  std::ostringstream out;
  Console console(out, false);
  RunFiles files(folder.path(), {});
  RunLog log(files, console, 10, rl::LoggerConfig{});
  rl::MetricSet setup;
  setup.set("timing/setup/total", 1);
  log.on_step(0, setup);
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(folder.read("metrics.jsonl"), "{\"step\": 0, \"timing/setup/total\": 1}\n");
}

TEST(RunLog, AllSamplesAreWrittenAndTheFirstOfShownStepsPrinted) {
  const ScratchFolder folder;
  std::ostringstream out;
  Console console(out, false);
  RunFiles files(folder.path(), {});
  rl::LoggerConfig config;
  config.console_period = 3;
  config.num_samples_to_print = 1;
  RunLog log(files, console, 10, config);
  const auto sample = [](int64_t step, int i) {
    return fmt::format(
        "{{\"prompt\":\"{}+{}=\",\"response\":\"a\\nb\",\"answer\":\"7\",\"reward\":0.5,"
        "\"finish_reason\":\"stop\"}}",
        step, i);
  };
  for (int64_t step = 1; step <= 4; ++step) {
    log.on_samples(
        step, {.lines = {sample(step, 0), sample(step, 1)}, .num_recorded = 2, .kept_tokens = {}});
    log.on_step(step, step_metrics());
  }
  std::vector<std::string> shown;
  for (const std::string& line : lines_of(out)) {
    if (!line.starts_with(" ")) shown.push_back(line);
  }
  EXPECT_EQ(shown,
            (std::vector<std::string>{
                "sample \"1+0=\" -> \"a\\nb\"  answer \"7\", reward 0.5, stop", "step 1 of 10",
                "sample \"3+0=\" -> \"a\\nb\"  answer \"7\", reward 0.5, stop", "step 3 of 10"}));
  EXPECT_EQ(folder.read("samples/step_2.jsonl"), sample(2, 0) + "\n" + sample(2, 1) + "\n");
}

TEST(Console, TheProgressBarIsForTerminals) {
  std::ostringstream plain;
  Console(plain, false).progress("generation", 1, 4);
  EXPECT_EQ(plain.str(), "");
  std::ostringstream terminal;
  Console console(terminal, true);
  console.progress("generation", 1, 4);
  EXPECT_NE(terminal.str().find("generation [########........................] 1/4"),
            std::string::npos);
  console.message("next");  // clears the bar first
  EXPECT_NE(terminal.str().find("1/4\r\x1b[K["), std::string::npos);
}

TEST(Console, WarningsAndBracesAreShownAsTheyStand) {
  std::ostringstream out;
  Console console(out, false);
  console.warning("gate {max} tripped");
  console.error("{");
  EXPECT_EQ(lines_of(out), (std::vector<std::string>{"warning: gate {max} tripped", "error: {"}));
}

TEST(Console, GateSummaryHasALineAGate) {
  std::ostringstream out;
  Console console(out, false);
  console.gate_summary({});
  EXPECT_EQ(out.str(), "");
  console.gate_summary({{"max(train/loss) <= 1", "fail", 2, 1.5, 7, 10},
                        {"last(validation/accuracy) >= 0.5", "warn", 0, 0, 0, 0}});
  const std::vector<std::string> lines = lines_of(out);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "gates");
  EXPECT_EQ(
      lines[2],
      "  max(train/loss) <= 1              fail         10      2           1.5        7  TRIPPED");
  EXPECT_EQ(lines[3],
            "  last(validation/accuracy) >= 0.5  warn          0      0             -        -  "
            "never checked");
}

}  // namespace
}  // namespace grpo::app
