// Rollouts over several ranks; ranks as threads, each with the same whole model.
#include "rl/loop/rollout.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>

#include "rl/loop/rollout_codec.h"
#include "tests/model_fixture.h"
#include "tests/parallel/late_weights.h"
#include "tests/run_ranks.h"
#include "tests/test_device.h"

namespace grpo::rl {
namespace {

using grpo::testing::OneRank;
using grpo::testing::RankContext;
using grpo::testing::run_ranks;
using grpo::testing::set_rank_of_this_thread;
using grpo::testing::TestModel;

// Token 12 reads "<12>"; token 2 ends a text and is not part of it.
class NumberTokenizer : public model::Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view) const override { return {}; }
  std::string decode(std::span<const int32_t> tokens, bool skip_special_tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      if (token != 2 || !skip_special_tokens) text += fmt::format("<{}>", token);
    }
    return text;
  }
  int64_t vocab_size() const override { return 131; }
  std::optional<int32_t> eos_token_id() const override { return 2; }
  std::optional<int32_t> token_to_id(std::string_view) const override { return std::nullopt; }
};

// Even last digits, and the first token's text as the answer.
std::vector<RewardConfig> rewards() {
  RewardConfig even;
  even.name = "even";
  even.type = "pattern";
  even.pattern = "[02468]>$";
  even.weight = 0.5;
  RewardConfig answer;
  answer.pattern = "^(<[0-9]+>)";
  answer.weight = 2.0;
  return {even, answer};
}

std::vector<PromptExample> make_examples(int64_t count) {
  std::vector<PromptExample> examples;
  for (int64_t i = 0; i < count; ++i) {
    PromptExample example{.index = 50 + i,
                          .line = 51 + i,
                          .prompt = fmt::format("prompt {}", i),
                          .answer = fmt::format("<{}>", 10 + i),
                          .response = {},
                          .prompt_tokens = {},
                          .response_tokens = {}};
    for (int64_t t = 0; t <= (5 * i) % 7; ++t) {
      example.prompt_tokens.push_back(static_cast<int32_t>((13 * t + 29 * i + 3) % 131));
    }
    examples.push_back(std::move(example));
  }
  return examples;
}

generation::SamplingParams filtered_params() {
  return {.filter = {.temperature = 0.7f, .top_k = 5, .top_p = 0.9},
          .greedy = false,
          .max_new_tokens = 8,
          .stop_token_ids = {2, 7, 30, 31, 32, 33},
          .ignore_stop = false,
          .seed = 11,
          .split = generation::DrawSplit::kTrain,
          .stores_kept_tokens = true};
}

struct RolloutSize {
  int64_t num_prompts = 4;
  int64_t num_samples = 3;
  int64_t max_batch_size = 64;
  DType dtype = DType::kFloat32;
  int64_t first_draw_index = 1000;
};

// What one rank receives.
struct Received {
  std::vector<RolloutSequence> sequences;
  int64_t prefilled_tokens;
  int64_t generated_tokens;
};

class RolloutTest : public ::testing::Test {
 protected:
  void SetUp() override { ::alarm(60); }
  void TearDown() override { ::alarm(0); }

  // The rollout of `num_ranks` ranks, as each rank received it, on the kind of device that
  // `num_device_ranks` ranks have (0: these). Weights arrive late.
  std::vector<Received> roll(int num_ranks, const RolloutSize& size,
                             const generation::SamplingParams& params, int num_device_ranks = 0) {
    const std::vector<PromptExample> examples = make_examples(size.num_prompts);
    RolloutPlan plan{
        .prompts = {}, .first_draw_index = size.first_draw_index, .num_samples = size.num_samples};
    for (const PromptExample& example : examples) plan.prompts.push_back(&example);
    std::vector<Received> received(static_cast<size_t>(num_ranks));
    run_ranks(num_ranks, [&](parallel::World& world) {
      if (num_device_ranks > 0) set_rank_of_this_thread(world.rank(), num_device_ranks);
      RankContext memory(world);
      TestModel model(memory, grpo::testing::odd_config(), parallel::make_generation_groups(world),
                      size.dtype);
      grpo::testing::fill_lively(model.store, 3);
      parallel::LateWeights late(model.store);
      model.store.poison_weights();
      late.write();
      generation::Engine engine(model.transformer,
                                {.max_sequence_tokens = 32,
                                 .max_batch_size = size.max_batch_size,
                                 .page_size_tokens = 4,
                                 .prefill_chunk_tokens = 512},
                                memory.allocator);
      const NumberTokenizer tokenizer;
      const RewardSet reward_set(rewards());
      Rollout rollout(engine, tokenizer, reward_set, model.store.groups().world.communicator());
      Rollout::Times times{};
      Received& mine = received[static_cast<size_t>(world.rank())];
      mine.sequences = rollout.run(
          plan, params, memory.ctx, [](int64_t, int64_t) {}, times);
      mine.prefilled_tokens = engine.counters().prefilled_tokens;
      mine.generated_tokens = engine.counters().generated_tokens;
      CHECK(times.generation_seconds > 0 && times.reward_seconds >= 0);
    });
    return received;
  }
};

// Bytes of everything that does not depend on who drew a sequence.
std::vector<std::byte> shared_bytes(std::vector<RolloutSequence> sequences) {
  for (RolloutSequence& sequence : sequences) sequence.kept_source = {};
  return encode_sequences(sequences);
}

// The kept tokens of every sequence, from the rank that drew it; nobody else may hold any.
std::vector<ops::KeptTokens> kept_by_their_sources(const std::vector<Received>& received) {
  std::vector<ops::KeptTokens> kept;
  for (size_t i = 0; i < received[0].sequences.size(); ++i) {
    const KeptSource& source = received[0].sequences[i].kept_source;
    for (size_t rank = 0; rank < received.size(); ++rank) {
      const RolloutSequence& sequence = received[rank].sequences[i];
      EXPECT_EQ(sequence.kept_source.rank, source.rank);
      EXPECT_EQ(sequence.kept.empty(), static_cast<int>(rank) != source.rank);
      if (static_cast<int>(rank) != source.rank) continue;
      EXPECT_EQ(sequence.kept.num_rows(), std::ssize(sequence.response_tokens));
      EXPECT_EQ(sequence.kept.num_ids(), source.num_ids);
      EXPECT_EQ(sequence.kept.has_thresholds(), source.has_thresholds);
      kept.push_back(sequence.kept);
    }
  }
  return kept;
}

// S03.
TEST_F(RolloutTest, EveryRankReceivesTheSameRolloutForEveryNumberOfRanks) {
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
    RolloutSize size;
    size.dtype = dtype;
    OneRank<std::vector<std::byte>> one_rank([this, size](int num_device_ranks) {
      return shared_bytes(roll(1, size, filtered_params(), num_device_ranks)[0].sequences);
    });
    for (const int num_ranks : {2, 3, 4, 5}) {
      size.max_batch_size = num_ranks == 3 ? 2 : 64;
      const auto received = roll(num_ranks, size, filtered_params());
      for (int rank = 0; rank < num_ranks; ++rank) {
        EXPECT_EQ(shared_bytes(received[static_cast<size_t>(rank)].sequences),
                  one_rank.beside(num_ranks))
            << "rank " << rank << " of " << num_ranks;
      }
    }
  }
}

// The sets do not depend on the ranks either, and stay where they were drawn.
TEST_F(RolloutTest, KeptTokensStayWhereTheyWereDrawn) {
  for (const int32_t max_kept_ids : {256, 4, 0}) {
    generation::SamplingParams params = filtered_params();
    params.filter.max_kept_ids = max_kept_ids;
    const auto one_rank = kept_by_their_sources(roll(1, {}, params));
    ASSERT_EQ(one_rank.size(), 12u);
    int64_t num_ids = 0;
    int64_t num_with_thresholds = 0;
    for (const ops::KeptTokens& kept : one_rank) {
      num_ids += kept.num_ids();
      num_with_thresholds += kept.has_thresholds() ? 1 : 0;
    }
    EXPECT_EQ(num_ids > 0, max_kept_ids > 0);
    EXPECT_EQ(num_with_thresholds > 0, max_kept_ids < 5);
    if (grpo::testing::test_device().kind == DeviceKind::kCuda) continue;
    for (const int num_ranks : {2, 3, 4}) {
      EXPECT_EQ(kept_by_their_sources(roll(num_ranks, {}, params)), one_rank) << num_ranks;
    }
  }
}

TEST_F(RolloutTest, WithoutAFilterThereAreNoSets) {
  generation::SamplingParams params = filtered_params();
  params.filter = {};
  for (const bool stores : {true, false}) {
    if (!stores) params = filtered_params();
    params.stores_kept_tokens = stores;
    const auto received = roll(1, {}, params);
    for (const RolloutSequence& sequence : received[0].sequences) {
      EXPECT_EQ(sequence.kept_source.rank, -1);
      EXPECT_TRUE(sequence.kept.empty());
    }
  }
}

// S03.
TEST_F(RolloutTest, EverySampleIsDrawnOnce) {
  for (const int num_ranks : {1, 2, 3, 5}) {
    for (const auto& [prompts, samples] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 1}, {1, 7}, {4, 2}, {7, 3}}) {
      RolloutSize size;
      size.num_prompts = prompts;
      size.num_samples = samples;
      const auto received = roll(num_ranks, size, filtered_params());
      int64_t generated = 0;
      int64_t listed = 0;
      for (const Received& r : received) {
        generated += r.generated_tokens;
        ASSERT_EQ(r.sequences.size(), static_cast<size_t>(prompts * samples));
      }
      for (size_t i = 0; i < received[0].sequences.size(); ++i) {
        const RolloutSequence& s = received[0].sequences[i];
        EXPECT_EQ(s.group, static_cast<int64_t>(i) / samples);
        EXPECT_EQ(s.sample, static_cast<int64_t>(i) % samples);
        listed += static_cast<int64_t>(s.response_tokens.size());
      }
      EXPECT_EQ(generated, listed) << prompts << " x " << samples << " on " << num_ranks;
    }
  }
}

// S03.
TEST_F(RolloutTest, PromptsArePrefilledOnceWhereGroupsAreWhole) {
  RolloutSize size;
  size.num_prompts = 6;
  int64_t prompt_tokens = 0;
  for (const PromptExample& e : make_examples(6)) {
    prompt_tokens += static_cast<int64_t>(e.prompt_tokens.size());
  }
  for (const int num_ranks : {1, 2, 3}) {
    int64_t prefilled = 0;
    for (const Received& r : roll(num_ranks, size, filtered_params())) {
      EXPECT_GT(r.prefilled_tokens, 0);
      prefilled += r.prefilled_tokens;
    }
    EXPECT_EQ(prefilled, prompt_tokens);
  }
}

TEST_F(RolloutTest, SequencesCarryTheirExampleAndReward) {
  RolloutSize size;
  size.num_samples = 12;
  const auto examples = make_examples(size.num_prompts);
  const NumberTokenizer tokenizer;
  int num_even = 0;
  int num_answers = 0;
  int num_stopped = 0;
  const auto received = roll(2, size, filtered_params());
  for (const RolloutSequence& s : received[0].sequences) {
    const PromptExample& example = examples[static_cast<size_t>(s.group)];
    EXPECT_EQ(s.example, example.index);
    EXPECT_EQ(s.prompt_tokens, example.prompt_tokens);
    EXPECT_EQ(s.length(), static_cast<int64_t>(s.prompt_tokens.size() + s.response_tokens.size()));
    ASSERT_FALSE(s.response_tokens.empty());
    EXPECT_EQ(s.generation_logprobs.size(), s.response_tokens.size());
    EXPECT_NE(s.kept_source.rank, -1);
    EXPECT_EQ(s.text, tokenizer.decode(s.response_tokens, true));
    const bool stopped = s.finish_reason == generation::FinishReason::kStop;
    EXPECT_TRUE(stopped || s.response_tokens.size() == 8u);
    const bool even = !s.text.empty() && (s.text[s.text.size() - 2] - '0') % 2 == 0;
    const bool answers = s.text.starts_with(example.answer);
    EXPECT_EQ(s.reward_components, (std::vector<double>{even ? 1.0 : 0.0, answers ? 1.0 : 0.0}));
    EXPECT_EQ(s.reward, (even ? 0.5 : 0.0) + (answers ? 2.0 : 0.0));
    num_even += even ? 1 : 0;
    num_answers += answers ? 1 : 0;
    num_stopped += stopped ? 1 : 0;
  }
  EXPECT_GT(num_even, 0);
  EXPECT_LT(num_even, 48);
  EXPECT_LT(num_answers, 48);
  EXPECT_GT(num_stopped, 0);
  EXPECT_LT(num_stopped, 48);
}

// S03. The same prompt at another place of the run, or in validation, draws other numbers; groups
// differ among themselves.
TEST_F(RolloutTest, DrawsAreKeyedByTheirPlaceInTheRun) {
  RolloutSize size;
  generation::SamplingParams params = filtered_params();
  params.filter = {};
  const auto bytes = [&] { return encode_sequences(roll(2, size, params)[0].sequences); };
  const auto expected = bytes();
  EXPECT_EQ(bytes(), expected);
  params.split = generation::DrawSplit::kValidation;
  EXPECT_NE(bytes(), expected);
  params.split = generation::DrawSplit::kTrain;
  size.first_draw_index += size.num_prompts;
  EXPECT_NE(bytes(), expected);
}

// A step's second prompt is the run's next draw: shifting by one prompt gives the same random
// numbers.
TEST_F(RolloutTest, DrawIndicesCountPrompts) {
  generation::SamplingParams params = filtered_params();
  const auto examples = make_examples(1);
  std::vector<std::vector<RolloutSequence>> results;
  for (const auto& [first_draw_index, repeats] :
       std::vector<std::pair<int64_t, size_t>>{{1000, 2}, {1001, 1}}) {
    const RolloutPlan plan{.prompts = std::vector<const PromptExample*>(repeats, &examples[0]),
                           .first_draw_index = first_draw_index,
                           .num_samples = 4};
    run_ranks(1, [&](parallel::World& world) {
      RankContext memory(world);
      TestModel model(memory, grpo::testing::odd_config(), parallel::make_generation_groups(world));
      grpo::testing::fill_lively(model.store, 3);
      generation::Engine engine(model.transformer,
                                {.max_sequence_tokens = 32,
                                 .max_batch_size = 8,
                                 .page_size_tokens = 4,
                                 .prefill_chunk_tokens = 512},
                                memory.allocator);
      const NumberTokenizer tokenizer;
      const RewardSet reward_set(rewards());
      Rollout rollout(engine, tokenizer, reward_set, model.store.groups().world.communicator());
      Rollout::Times times{};
      results.push_back(rollout.run(
          plan, params, memory.ctx, [](int64_t, int64_t) {}, times));
    });
  }
  int num_equal = 0;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(results[0][4 + i].response_tokens, results[1][i].response_tokens);
    num_equal += results[0][i].response_tokens == results[1][i].response_tokens ? 1 : 0;
  }
  EXPECT_LT(num_equal, 4);
}

}  // namespace
}  // namespace grpo::rl
