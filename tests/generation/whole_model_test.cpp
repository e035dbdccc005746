// Through the whole model: what decode stores for every position is, bit for bit, what one packed
// pass of the training side computes, for any batch, page and chunk size and any place in the pack.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "tests/generation/engine_fixture.h"

namespace grpo::generation {
namespace {

using grpo::testing::is_on_gpu;

// A GPU takes head dims of the tensor cores' attention, and sums that its library would split.
model::ModelConfig config_here() {
  model::ModelConfig config = grpo::testing::even_config();
  if (!is_on_gpu()) return config;
  config.hidden_size = 512;
  config.num_heads = 8;
  config.head_dim = 64;
  config.intermediate_size = 4096;
  config.vocab_size = 2048;
  config.max_position_embeddings = 1024;
  return config;
}

struct BatchCase {
  int64_t batch_size;
  int64_t num_tokens;  // of each sequence, prompt and response
  int64_t page_size_tokens;
  int64_t prefill_chunk_tokens;

  operator Schedule() const {
    return {.max_batch_size = batch_size,
            .page_size_tokens = page_size_tokens,
            .prefill_chunk_tokens = prefill_chunk_tokens,
            .max_sequence_tokens = num_tokens};
  }
};

std::vector<BatchCase> batches_here() {
  if (!is_on_gpu()) return {{1, 80, 16, 512}, {7, 70, 3, 5}, {64, 40, 5, 7}};
  return {{1, 1024, 16, 512}, {1, 1024, 64, 33},   {7, 1024, 24, 100},
          {64, 300, 16, 7},   {64, 300, 128, 512}, {512, 130, 64, 64}};
}

// As many samples as the batch has places, up to three a prompt; prompts of one token and more.
std::vector<GenerationRequest> requests_for(int64_t batch_size) {
  constexpr int64_t kLengths[] = {1, 19, 2, 33, 8};
  std::vector<GenerationRequest> requests;
  for (int64_t left = batch_size; left > 0; left -= 3) {
    const auto tag = static_cast<int64_t>(requests.size());
    GenerationRequest request{.tag = tag,
                              .draw_index = static_cast<uint64_t>(tag),
                              .prompt_tokens = {},
                              .sample_indices = {}};
    for (int64_t i = 0; i < kLengths[tag % 5]; ++i) {
      request.prompt_tokens.push_back(static_cast<int32_t>((17 * i + 31 * tag + 3) % 100));
    }
    request.sample_indices.resize(static_cast<size_t>(std::min<int64_t>(left, 3)));
    std::iota(request.sample_indices.begin(), request.sample_indices.end(), 0);
    requests.push_back(std::move(request));
  }
  return requests;
}

// Log-probabilities' bits of completions by one packed pass that holds them in this order, behind a
// sequence of `offset` tokens.
std::vector<std::vector<uint32_t>> packed_bits(EngineRank& rank,
                                               const std::vector<GenerationRequest>& requests,
                                               const std::vector<Completion>& completions,
                                               const std::vector<size_t>& order, int64_t offset) {
  std::vector<std::vector<int32_t>> tokens(completions.size());
  const std::vector<int32_t> before(static_cast<size_t>(offset), 5);
  std::vector<model::PackedSequence> sequences;
  if (offset > 0) sequences.push_back({.tokens = before, .first_target = offset, .kept = {}});
  for (const size_t i : order) {
    tokens[i] = requests[static_cast<size_t>(completions[i].tag)].prompt_tokens;
    const auto first_target = static_cast<int64_t>(tokens[i].size());
    tokens[i].insert(tokens[i].end(), completions[i].tokens.begin(), completions[i].tokens.end());
    sequences.push_back({.tokens = tokens[i], .first_target = first_target, .kept = {}});
  }
  const model::PackedBatch batch(sequences, rank.memory.allocator);
  const std::vector<uint32_t> all =
      bits_of(grpo::testing::score(rank.model.transformer, batch, 1.0f, nullptr, rank.memory.ctx)
                  .processed);
  std::vector<std::vector<uint32_t>> bits(completions.size());
  auto next = all.begin();
  for (const size_t i : order) {
    const auto count = static_cast<ptrdiff_t>(completions[i].tokens.size());
    bits[i].assign(next, next + count);
    next += count;
  }
  CHECK(next == all.end());
  return bits;
}

class EngineWholeModel : public ::testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(All, EngineWholeModel,
                         ::testing::Values(DType::kFloat32, DType::kBfloat16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

TEST_P(EngineWholeModel, EveryPositionHasTheBitsOfAPackedPass) {
  EngineRank rank(config_here(), GetParam());
  for (const BatchCase& batch : batches_here()) {
    SCOPED_TRACE(fmt::format("batch {}, {} tokens, pages of {}, chunks of {}", batch.batch_size,
                             batch.num_tokens, batch.page_size_tokens, batch.prefill_chunk_tokens));
    const auto requests = requests_for(batch.batch_size);
    const auto completions =
        rank.generate(requests, {.max_new_tokens = batch.num_tokens, .ignore_stop = true}, batch);
    ASSERT_EQ(static_cast<int64_t>(completions.size()), batch.batch_size);
    // All sequences ran together to the end, in one step a token.
    ASSERT_EQ(rank.counters.decode_steps, batch.num_tokens - 2);
    std::vector<size_t> order(completions.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::set<uint32_t> distinct;
    for (const int64_t offset : {0, 1, 37}) {
      const auto bits = packed_bits(rank, requests, completions, order, offset);
      for (size_t i = 0; i < completions.size(); ++i) {
        const Completion& c = completions[i];
        ASSERT_EQ(bits[i], bits_of(c.logprobs))
            << c.tag << "/" << c.sample_index << " packed behind " << offset << " tokens";
        distinct.insert(bits[i].begin(), bits[i].end());
      }
      std::reverse(order.begin(), order.end());
      std::rotate(order.begin(), order.begin() + static_cast<ptrdiff_t>(order.size() / 3),
                  order.end());
    }
    EXPECT_GT(distinct.size(), 50u);
  }
}

// The comparison is able to fail: with what exact numerics rule out it does.
TEST_P(EngineWholeModel, OtherArithmeticIsNoticed) {
  EngineRank rank(config_here(), GetParam());
  const BatchCase batch = batches_here()[1];
  const auto requests = requests_for(batch.batch_size);
  std::vector<size_t> order(static_cast<size_t>(batch.batch_size));
  std::iota(order.begin(), order.end(), size_t{0});
  for (const InjectedFault fault : {InjectedFault::kNone, InjectedFault::kSplitK,
                                    InjectedFault::kKvTile, InjectedFault::kBfloat16Logits}) {
    Schedule schedule = batch;
    schedule.fault = fault;
    const auto completions = rank.generate(
        requests, {.max_new_tokens = batch.num_tokens, .ignore_stop = true}, schedule);
    const auto bits = packed_bits(rank, requests, completions, order, 0);
    int64_t num_different = 0;
    for (size_t i = 0; i < completions.size(); ++i) {
      for (size_t t = 0; t < bits[i].size(); ++t) {
        num_different += bits[i][t] != bits_of(completions[i].logprobs)[t] ? 1 : 0;
      }
    }
    EXPECT_EQ(num_different == 0, fault == InjectedFault::kNone)
        << num_different << " differ: " << describe(fault);
  }
}

}  // namespace
}  // namespace grpo::generation
