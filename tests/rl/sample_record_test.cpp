// The record of a sample: every field, by name, and the sets of kept tokens beside it.
#include "rl/loop/sample_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace grpo::rl {
namespace {

PromptExample example() {
  return {.index = 52,
          .line = 61,
          .prompt = "prompt 2",
          .answer = "<12>",
          .response = "",
          .prompt_tokens = {3, 4},
          .response_tokens = {}};
}

RolloutSequence sequence() {
  return {.group = 2,
          .sample = 4,
          .example = 52,
          .prompt_tokens = {3, 4},
          .response_tokens = {9, 2},
          .generation_logprobs = {-1.0f, -0.1f},
          .kept_source = {},
          .kept = {},
          .finish_reason = generation::FinishReason::kStop,
          .reward = 2.5,
          .reward_components = {1.0, 0.5},
          .text = "a \"quoted\"\nline and half a character \xC3"};
}

SampleOrigin origin() {
  return {.step = 7,
          .weights_version = 12,
          .data_path = "data/sums.jsonl",
          .first_prompt_index = 48,
          .reward_names = {"exact", "shape"}};
}

TEST(SampleRecord, IsOneLineWithEveryField) {
  SequenceSignals signals{
      .advantage = -0.25, .previous_logprobs = {-1.0f, -0.3f}, .reference_logprobs = {}};
  const KeptPlace place{.offset = 96, .num_bytes = 28};
  RolloutSequence sample = sequence();
  sample.kept_source = {.rank = 1, .has_thresholds = false, .num_ids = 5};
  const std::string line = sample_json(origin(), sample, example(), signals, &place);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::ordered_json::parse(line);
  EXPECT_EQ(json, nlohmann::ordered_json::parse(R"({
    "schema_version": 1, "step": 7, "weights_version": 12, "data_set": "data/sums.jsonl",
    "line": 61, "example": 52, "group": 2, "sample": 4, "prompt_index": 50,
    "prompt": "prompt 2", "response": "a \"quoted\"\nline and half a character \ufffd",
    "answer": "<12>", "prompt_tokens": [3, 4], "response_tokens": [9, 2],
    "generation_logprobs": [-1, -0.1], "prev_logprobs": [-1, -0.3],
    "reference_policy_logprobs": null, "entropy": null,
    "kept_tokens": {"offset": 96, "bytes": 28, "num_ids": 5, "has_thresholds": false},
    "reward": 2.5, "reward_parts": {"exact": 1, "shape": 0.5}, "masked": null,
    "advantage": -0.25, "finish_reason": "stop"})"));
  sample.finish_reason = generation::FinishReason::kLength;
  signals.reference_logprobs = {-2.0f, -3.0f};
  const auto other =
      nlohmann::json::parse(sample_json(origin(), sample, example(), signals, nullptr));
  EXPECT_EQ(other.at("finish_reason"), "length");
  EXPECT_EQ(other.at("kept_tokens"), nullptr);
  EXPECT_EQ(other.at("reference_policy_logprobs"), nlohmann::json({-2.0, -3.0}));
}

TEST(SampleRecord, NumbersReadBackToTheSameFloats) {
  RolloutSequence sample = sequence();
  const float infinity = std::numeric_limits<float>::infinity();
  sample.generation_logprobs = {0.1f, -1.17549435e-38f, -16777217.0f, 1e-45f, 1.0f / 3.0f};
  SequenceSignals signals{.advantage = 0.1 + 0.2,
                          .previous_logprobs = {-infinity, std::nanf(""), infinity},
                          .reference_logprobs = {}};
  const auto json =
      nlohmann::json::parse(sample_json(origin(), sample, example(), signals, nullptr));
  for (size_t i = 0; i < sample.generation_logprobs.size(); ++i) {
    EXPECT_EQ(static_cast<float>(json.at("generation_logprobs")[i].get<double>()),
              sample.generation_logprobs[i]);
  }
  EXPECT_EQ(json.at("prev_logprobs"), nlohmann::json({"-inf", "nan", "inf"}));
  EXPECT_EQ(json.at("advantage").get<double>(), 0.1 + 0.2);
}

TEST(SampleRecord, KeptTokensStandOneSampleAfterTheOther) {
  std::vector<RolloutSequence> sequences{sequence(), sequence(), sequence()};
  ops::KeptTokens& first = sequences[0].kept;
  first.append_ids(std::vector<uint32_t>{2, 5, 9});
  first.append_ids(std::vector<uint32_t>{2});
  ops::KeptTokens& last = sequences[2].kept;
  last.append_ids(std::vector<uint32_t>{9});
  last.append_threshold({.above = -1.5, .last_tie = 3});
  for (RolloutSequence& one : sequences) {
    one.kept_source = {.rank = one.kept.empty() ? -1 : 0,
                       .has_thresholds = one.kept.has_thresholds(),
                       .num_ids = one.kept.num_ids()};
    one.example = 0;
  }
  const std::vector<SequenceSignals> signals(3);
  const PromptExample prompt = example();
  const SampleBatch batch = record_samples(
      origin(), [&](int64_t) -> const PromptExample& { return prompt; }, sequences, signals);
  ASSERT_EQ(batch.lines.size(), 3u);
  EXPECT_EQ(batch.num_recorded, 3u);
  for (const size_t i : {0u, 2u}) {
    const auto place = nlohmann::json::parse(batch.lines[i]).at("kept_tokens");
    const auto bytes =
        std::span(batch.kept_tokens)
            .subspan(place.at("offset").get<size_t>(), place.at("bytes").get<size_t>());
    EXPECT_EQ(ops::KeptTokens::unpack(bytes, 2, place.at("num_ids").get<int64_t>(),
                                      place.at("has_thresholds").get<bool>()),
              sequences[i].kept);
  }
  EXPECT_EQ(nlohmann::json::parse(batch.lines[1]).at("kept_tokens"), nullptr);
}

}  // namespace
}  // namespace grpo::rl
