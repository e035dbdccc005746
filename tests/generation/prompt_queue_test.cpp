#include "generation/prompt_queue.h"

#include <gtest/gtest.h>

namespace grpo::generation {
namespace {

class PromptQueueTest : public ::testing::Test {
 protected:
  // A prompt of `length` tokens that are numbered through, with samples.
  void add(int64_t length, int32_t num_samples) {
    GenerationRequest request{.tag = static_cast<int64_t>(requests_.size()),
                              .draw_index = 0,
                              .prompt_tokens = {},
                              .sample_indices = {}};
    for (int64_t i = 0; i < length; ++i) request.prompt_tokens.push_back(next_token_++);
    for (int32_t i = 0; i < num_samples; ++i) request.sample_indices.push_back(i);
    requests_.push_back(std::move(request));
  }

  std::vector<int64_t> tags(const std::vector<WaitingPrompt>& prompts) {
    std::vector<int64_t> tags;
    for (const WaitingPrompt& prompt : prompts) tags.push_back(prompt.request->tag);
    return tags;
  }

  Allocator allocator_{Device::cpu()};
  KvCache cache_{{.num_layers = 1,
                  .num_kv_heads = 1,
                  .head_dim = 8,
                  .dtype = DType::kFloat32,
                  .page_size_tokens = 4,
                  .num_pages = 20},
                 allocator_};
  std::vector<GenerationRequest> requests_;
  int32_t next_token_ = 0;
};

TEST_F(PromptQueueTest, GivesPromptsUntilTheirSamplesFillThePlaces) {
  for (const int32_t num_samples : {3, 0, 2, 4, 1}) add(1, num_samples);
  PromptQueue queue(requests_);
  using Tags = std::vector<int64_t>;
  EXPECT_EQ(tags(queue.take(0, cache_, 7)), Tags{});
  EXPECT_EQ(tags(queue.take(3, cache_, 7)), Tags{0});
  const std::vector<WaitingPrompt> prompts = queue.take(3, cache_, 7);
  EXPECT_EQ(tags(prompts), (Tags{2, 3}));
  EXPECT_EQ(prompts[1].num_waiting_samples(), 4);
  EXPECT_EQ(prompts[1].pages.weights_version, 7u);
  EXPECT_EQ(tags(queue.take(100, cache_, 7)), Tags{4});
  EXPECT_EQ(tags(queue.take(100, cache_, 7)), Tags{});
}

// Every token comes in one chunk, in order, and each prompt's last one with its logits.
TEST_F(PromptQueueTest, ChunksPackPrompts) {
  for (const int64_t length : {3, 1, 6, 2}) add(length, 1);
  for (const int64_t max_tokens : {1, 2, 4, 5, 12, 100}) {
    PromptQueue queue(requests_);
    std::vector<WaitingPrompt> prompts = queue.take(4, cache_, 1);
    std::span<WaitingPrompt> left(prompts);
    std::vector<int32_t> tokens;
    while (!left.empty()) {
      int64_t num_tokens = 0;
      size_t num_ended = 0;
      for (const SequenceRows& rows : next_prompt_chunk(left, max_tokens)) {
        ASSERT_FALSE(rows.tokens.empty());
        tokens.insert(tokens.end(), rows.tokens.begin(), rows.tokens.end());
        num_tokens += static_cast<int64_t>(rows.tokens.size());
        cache_.extend(*rows.pages, static_cast<int64_t>(rows.tokens.size()));
        if (!rows.wants_logits) continue;
        const WaitingPrompt& prompt = left[num_ended++];
        EXPECT_EQ(rows.pages, &prompt.pages);
        EXPECT_EQ(rows.tokens.back(), prompt.request->prompt_tokens.back());
      }
      left = left.subspan(num_ended);
      EXPECT_LE(num_tokens, max_tokens);
      EXPECT_TRUE(left.empty() || num_tokens == max_tokens);
    }
    EXPECT_EQ(static_cast<int32_t>(tokens.size()), next_token_);
    for (size_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(tokens[i], static_cast<int32_t>(i));
    cache_.release_all();
  }
}

}  // namespace
}  // namespace grpo::generation
