#include "rl/loop/rollout_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

namespace grpo::rl {
namespace {

RolloutSequence full_sequence() {
  return {.group = int64_t{1} << 40,
          .sample = 17,
          .example = 123456789012,
          .prompt_tokens = {5, 6, 7},
          .response_tokens = {151935, 0},
          .generation_logprobs = {-0.0f, -1.17549435e-38f},
          .kept_source = {.rank = 3, .has_thresholds = true, .num_ids = int64_t{1} << 33},
          .kept = {},
          .finish_reason = generation::FinishReason::kStop,
          .reward = 0.1,
          .reward_components = {0.1, -std::numeric_limits<double>::infinity()},
          .text = std::string("zero \0 inside, \xC3\xA9", 17)};
}

RolloutSequence empty_sequence() {
  return {.group = 0,
          .sample = 0,
          .example = 0,
          .prompt_tokens = {},
          .response_tokens = {},
          .generation_logprobs = {},
          .kept_source = {},
          .kept = {},
          .finish_reason = generation::FinishReason::kLength,
          .reward = -0.0,
          .reward_components = {},
          .text = {}};
}

void expect_same(const RolloutSequence& a, const RolloutSequence& b) {
  EXPECT_EQ(a.group, b.group);
  EXPECT_EQ(a.sample, b.sample);
  EXPECT_EQ(a.example, b.example);
  EXPECT_EQ(a.prompt_tokens, b.prompt_tokens);
  EXPECT_EQ(a.response_tokens, b.response_tokens);
  ASSERT_EQ(a.generation_logprobs.size(), b.generation_logprobs.size());
  for (size_t i = 0; i < a.generation_logprobs.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(a.generation_logprobs[i]),
              std::bit_cast<uint32_t>(b.generation_logprobs[i]));
  }
  EXPECT_EQ(a.kept_source.rank, b.kept_source.rank);
  EXPECT_EQ(a.kept_source.has_thresholds, b.kept_source.has_thresholds);
  EXPECT_EQ(a.kept_source.num_ids, b.kept_source.num_ids);
  EXPECT_EQ(a.finish_reason, b.finish_reason);
  EXPECT_EQ(std::bit_cast<uint64_t>(a.reward), std::bit_cast<uint64_t>(b.reward));
  EXPECT_EQ(a.reward_components, b.reward_components);
  EXPECT_EQ(a.text, b.text);
}

TEST(RolloutCodec, EveryFieldComesBack) {
  const std::vector<RolloutSequence> sequences{full_sequence(), empty_sequence(), full_sequence()};
  const auto decoded = decode_sequences(encode_sequences(sequences));
  ASSERT_EQ(decoded.size(), 3u);
  for (size_t i = 0; i < 3; ++i) expect_same(decoded[i], sequences[i]);
}

TEST(RolloutCodec, NoSequencesAreNoBytes) {
  EXPECT_TRUE(encode_sequences({}).empty());
  EXPECT_TRUE(decode_sequences({}).empty());
}

TEST(RolloutCodec, BytesThatEndEarlyAreAnError) {
  const auto bytes = encode_sequences({full_sequence()});
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_THROW(decode_sequences(std::span(bytes).first(size)), InternalError) << size;
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_THROW(decode_sequences(longer), InternalError);
}

// A length that the bytes cannot hold is refused before memory is asked for.
TEST(RolloutCodec, AnAbsurdLengthIsAnError) {
  auto bytes = encode_sequences({full_sequence()});
  const size_t length_of_prompt = sizeof(int64_t) + sizeof(int32_t) + sizeof(int64_t);
  for (size_t i = 0; i < sizeof(uint64_t); ++i) bytes[length_of_prompt + i] = std::byte{0xFF};
  EXPECT_THROW(decode_sequences(bytes), InternalError);
}

}  // namespace
}  // namespace grpo::rl
