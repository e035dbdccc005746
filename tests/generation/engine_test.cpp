#include "generation/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "tests/generation/engine_fixture.h"

namespace grpo::generation {
namespace {

using grpo::testing::even_config;
using grpo::testing::odd_config;

struct Sampling {
  const char* name;
  Draws draws;
};

std::vector<Sampling> samplings() {
  return {{"plain", {}},
          {"filtered", {.temperature = 0.7, .top_k = 5, .top_p = 0.9}},
          {"top_p", {.temperature = 1.3, .top_p = 0.8}},
          {"top_p_by_threshold", {.temperature = 1.3, .top_p = 0.8, .max_kept_ids = 0}},
          {"greedy", {.greedy = true}}};
}

class EngineExactness : public ::testing::TestWithParam<std::tuple<DType, int>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  Draws draws() const { return samplings()[static_cast<size_t>(std::get<1>(GetParam()))].draws; }
};

INSTANTIATE_TEST_SUITE_P(All, EngineExactness,
                         ::testing::Combine(::testing::Values(DType::kFloat32, DType::kBfloat16),
                                            ::testing::Range(0, 5)),
                         [](const auto& test) {
                           return std::string(dtype_name(std::get<0>(test.param))) + "_" +
                                  samplings()[static_cast<size_t>(std::get<1>(test.param))].name;
                         });

// Batch, page and chunk sizes and the order of requests leave no trace in a rollout.
TEST_P(EngineExactness, TheScheduleChangesNoBit) {
  EngineRank rank(even_config(), dtype());
  const std::vector<GenerationRequest> requests = make_requests();
  Draws draws = this->draws();
  draws.stops = {2, 40, 41, 42, 43};  // so that sequences end at different times
  const std::string expected = describe(rank.generate(requests, draws));
  std::vector<GenerationRequest> reversed(requests.rbegin(), requests.rend());
  std::vector<GenerationRequest> split;  // one request a sample
  for (const GenerationRequest& request : requests) {
    for (const int32_t sample : request.sample_indices) {
      split.push_back(request);
      split.back().sample_indices = {sample};
    }
  }
  std::rotate(split.begin(), split.begin() + 7, split.end());
  // Every combination for the first two kinds of sampling, those of one batch size for the others.
  const bool thorough = std::get<1>(GetParam()) < 2;
  for (const int64_t batch : {1, 3, 64}) {
    if (!thorough && batch != 3) continue;
    for (const int64_t page : {1, 3, 16, 64}) {
      for (const int64_t chunk : {1, 5, 512}) {
        const Schedule schedule{
            .max_batch_size = batch, .page_size_tokens = page, .prefill_chunk_tokens = chunk};
        const bool turned = (batch + page + chunk) % 2 == 0;
        ASSERT_EQ(describe(rank.generate(turned ? reversed : requests, draws, schedule)), expected)
            << "batch " << batch << ", page " << page << ", chunk " << chunk;
      }
    }
  }
  EXPECT_EQ(describe(rank.generate(split, draws, {.max_batch_size = 4, .page_size_tokens = 3})),
            expected);
}

// The contract: what generation stored is what training computes, as 32-bit patterns.
TEST_P(EngineExactness, LogprobsAreTheTrainingForwards) {
  for (const bool tied : {true, false}) {
    EngineRank rank(odd_config(tied), dtype());
    const std::vector<GenerationRequest> requests = make_requests();
    const Draws draws = this->draws();
    const SamplingParams params = draws;
    const float inv_temperature = draws.greedy ? 1.0f : params.filter.inv_temperature();
    const auto completions =
        rank.generate(requests, draws, {.max_batch_size = 4, .page_size_tokens = 3});
    const bool filtered = !draws.greedy && (draws.top_k > 0 || draws.top_p < 1.0);
    int64_t num_lower = 0;
    int64_t num_differing = 0;  // from another filter's sets
    for (const Completion& c : completions) {
      const auto& prompt = requests[static_cast<size_t>(c.tag)].prompt_tokens;
      ASSERT_EQ(c.tokens.size(), 10u);
      ASSERT_EQ(c.logprobs.size(), 10u);
      ASSERT_EQ(c.kept.num_rows(), filtered ? 10 : 0);
      EXPECT_EQ(c.kept.num_ids() > 0, filtered && draws.max_kept_ids > 0);
      model::FilterCheck filter_check{.filter = params.filter};
      const TestScores scores =
          score(rank.model.transformer, rank.memory, prompt, c.tokens, c.kept.view(),
                inv_temperature, filtered ? &filter_check : nullptr);
      EXPECT_EQ(bits_of(scores.processed), bits_of(c.logprobs)) << c.tag << "/" << c.sample_index;
      EXPECT_EQ(filter_check.num_checked, filtered ? 10 : 0);
      EXPECT_EQ(filter_check.num_differing, 0);
      if (filtered) {
        model::FilterCheck other{.filter = params.filter};
        other.filter.top_k = 1;
        score(rank.model.transformer, rank.memory, prompt, c.tokens, c.kept.view(), inv_temperature,
              &other);
        num_differing += other.num_differing;
      }
      for (size_t i = 0; i < c.tokens.size(); ++i) {
        EXPECT_TRUE(std::isfinite(c.logprobs[i]) && c.logprobs[i] <= 0.0f);
        num_lower += scores.unfiltered[i] < scores.processed[i] ? 1 : 0;
      }
    }
    EXPECT_EQ(num_differing > 0, filtered);
    // The filters did filter.
    EXPECT_EQ(num_lower > 0, filtered);
  }
}

TEST(Engine, GreedyIsTheArgmaxOfAFullForward) {
  EngineRank rank(odd_config());
  std::vector<GenerationRequest> requests = make_requests(1);
  requests.erase(requests.begin() + 4);  // the longest costs most
  const auto completions = rank.generate(requests, {.greedy = true, .max_new_tokens = 3});
  std::set<int32_t> drawn;
  for (const Completion& c : completions) {
    std::vector<int32_t> prefix = requests[static_cast<size_t>(c.tag)].prompt_tokens;
    for (size_t i = 0; i < c.tokens.size(); ++i) {
      // The log-probability of every id after this prefix; the lowest id wins a tie.
      int32_t best = -1;
      float best_logprob = -std::numeric_limits<float>::infinity();
      for (int32_t id = 0; id < 131; ++id) {
        const float logprob =
            score(rank.model.transformer, rank.memory, prefix, {id}, {}, 1.0f).unfiltered[0];
        if (logprob > best_logprob) {
          best = id;
          best_logprob = logprob;
        }
      }
      ASSERT_EQ(c.tokens[i], best) << "prompt " << c.tag << ", token " << i;
      ASSERT_EQ(c.logprobs[i], best_logprob);
      drawn.insert(best);
      prefix.push_back(best);
    }
  }
  EXPECT_GT(drawn.size(), 2u);
}

TEST(Engine, DrawsFollowTheDistribution) {
  EngineRank rank(even_config());
  GenerationRequest request = make_requests(0)[0];
  constexpr int kSamples = 4000;
  for (int32_t i = 0; i < kSamples; ++i) request.sample_indices.push_back(i);
  std::map<int32_t, int> counts;
  std::map<int32_t, double> probabilities;
  for (const Completion& c : rank.generate({request}, {.max_new_tokens = 1})) {
    ++counts[c.tokens[0]];
    probabilities[c.tokens[0]] = std::exp(static_cast<double>(c.logprobs[0]));
  }
  EXPECT_GT(counts.size(), 20u);
  for (const auto& [token, p] : probabilities) {
    const double deviation = std::sqrt(kSamples * p * (1 - p));
    EXPECT_NEAR(counts[token], kSamples * p, 5 * deviation + 1) << "token " << token;
  }
}

TEST(Engine, SamplesSplitsAndSeedsDrawTheirOwnNumbers) {
  EngineRank rank;
  const std::vector<GenerationRequest> requests = make_requests(4);
  const auto completions = rank.generate(requests, {});
  std::map<int64_t, std::set<std::vector<int32_t>>> by_prompt;
  for (const Completion& c : completions) by_prompt[c.tag].insert(c.tokens);
  for (const auto& [tag, distinct] : by_prompt) EXPECT_EQ(distinct.size(), 4u) << "prompt " << tag;
  const std::string expected = describe(completions);
  EXPECT_EQ(describe(rank.generate(requests, {})), expected);
  EXPECT_NE(describe(rank.generate(requests, {.split = DrawSplit::kValidation})), expected);
  EXPECT_NE(describe(rank.generate(requests, {.seed = 43})), expected);
  // The draw index is the prompt's key, the tag only a label.
  std::vector<GenerationRequest> relabelled = requests;
  for (GenerationRequest& request : relabelled) request.tag += 10;
  auto same_draws = rank.generate(relabelled, {});
  for (Completion& c : same_draws) c.tag -= 10;
  EXPECT_EQ(describe(same_draws), expected);
  std::vector<GenerationRequest> later = requests;
  for (GenerationRequest& request : later) request.draw_index += 1000;
  EXPECT_NE(describe(rank.generate(later, {})), expected);
}

TEST(Engine, CompletionsAreOrderedAndComplete) {
  EngineRank rank;
  std::vector<GenerationRequest> requests = make_requests(2);
  requests[3].sample_indices = {};         // nothing wanted
  requests[1].sample_indices = {9, 4, 6};  // any indices
  std::reverse(requests.begin(), requests.end());
  std::vector<std::pair<int64_t, int32_t>> order;
  for (const Completion& c :
       rank.generate(requests, {.max_new_tokens = 3}, {.max_batch_size = 2})) {
    order.emplace_back(c.tag, c.sample_index);
  }
  EXPECT_EQ(order, (std::vector<std::pair<int64_t, int32_t>>{
                       {0, 0}, {0, 1}, {1, 4}, {1, 6}, {1, 9}, {2, 0}, {2, 1}, {4, 0}, {4, 1}}));
  EXPECT_TRUE(rank.generate({}, {}).empty());
}

TEST(Engine, PromptsArePrefilledOncePerGroup) {
  EngineRank rank;
  const std::vector<GenerationRequest> requests = make_requests(5);
  int64_t prompt_tokens = 0;
  for (const GenerationRequest& r : requests) {
    prompt_tokens += static_cast<int64_t>(r.prompt_tokens.size());
  }
  for (const int64_t batch : {1, 2, 64}) {
    rank.generate(requests, {.max_new_tokens = 4}, {.max_batch_size = batch});
    EXPECT_EQ(rank.counters.prefilled_tokens, prompt_tokens);
    EXPECT_EQ(rank.counters.generated_tokens, 25 * 4);
    // The first token comes from the prefill; three more steps for each batch.
    if (batch == 64) {
      EXPECT_EQ(rank.counters.decode_steps, 3);
    } else if (batch == 1) {
      EXPECT_EQ(rank.counters.decode_steps, 25 * 3);
    }
  }
}

TEST(Engine, PromptsRunTogether) {
  EngineRank rank;
  const std::vector<GenerationRequest> requests = make_requests();  // 48 tokens
  for (const auto& [chunk, num_chunks] : {std::pair{512, 1}, {48, 1}, {47, 2}, {5, 10}, {1, 48}}) {
    rank.generate(requests, {.max_new_tokens = 2}, {.prefill_chunk_tokens = chunk});
    EXPECT_EQ(rank.counters.prefill_chunks, num_chunks) << "chunk of " << chunk;
  }
}

// Graphs are of few shapes: rows and pages are filled up, which leaves no trace either.
TEST(Engine, GraphsRunOnGpusAndChangeNoBit) {
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
    EngineRank rank(odd_config(), dtype);
    const bool is_gpu = rank.memory.ctx.device.kind == DeviceKind::kCuda;
    const std::vector<GenerationRequest> requests = make_requests(8);
    const Draws draws{.max_new_tokens = 12, .stops = {2, 40, 41, 42, 43}};
    const std::string expected = describe(rank.generate(requests, draws, {.enforce_eager = true}));
    EXPECT_EQ(rank.counters.graph_launches, 0);
    for (const int64_t batch : {3, 20, 64}) {
      for (const int64_t page : {1, 3, 64}) {
        const Schedule schedule{.max_batch_size = batch, .page_size_tokens = page};
        ASSERT_EQ(describe(rank.generate(requests, draws, schedule)), expected)
            << "batch " << batch << ", page " << page;
        EXPECT_EQ(rank.counters.graph_launches > 0, is_gpu);
      }
    }
  }
}

// R07. A recorded forward reads the present weights, and none of a workspace that is gone.
TEST(Engine, GraphsOutliveWeightsAndWorkspaces) {
  EngineRank rank;
  const std::vector<GenerationRequest> requests = make_requests(8);
  Engine engine(rank.model.transformer, Schedule{}, rank.memory.allocator);
  const Schedule eager{.enforce_eager = true};
  for (const uint64_t seed : {7, 8, 9}) {
    grpo::testing::fill_lively(rank.model.store, seed);
    Workspace workspace(rank.memory.allocator);
    OpContext ctx{rank.memory.ctx.device, Stream::none(), workspace,
                  rank.memory.matrix_library.get()};
    const std::string expected = describe(rank.generate(requests, {}, eager));
    for (int call = 0; call < 2; ++call) {
      EXPECT_EQ(describe(engine.generate(requests, Draws{}, ctx, ignore_progress)), expected);
    }
  }
}

// So that a batch whose sequences end one by one does not run a prompt at a time.
TEST(Engine, PromptsWaitUntilAnEighthOfTheBatchIsFree) {
  EngineRank rank;
  const Draws draws{.stops = {2, 40, 41, 42, 43, 50, 51, 52, 53}};
  std::vector<GenerationRequest> requests;
  for (const GenerationRequest& request : make_requests(8)) {
    for (const int32_t sample : request.sample_indices) {
      requests.push_back(request);
      requests.back().sample_indices = {sample};
    }
  }
  const std::string expected = describe(rank.generate(requests, draws, {.max_batch_size = 64}));
  EXPECT_EQ(describe(rank.generate(requests, draws, {.max_batch_size = 16})), expected);
  // Sixteen prompts start together; each later chunk has at least two of the others.
  EXPECT_GT(rank.counters.prefill_chunks, 2);
  EXPECT_LE(rank.counters.prefill_chunks, 1 + (40 - 16) / 2);
}

TEST(Engine, StopTokensEndACompletionAndBelongToIt) {
  EngineRank rank;
  const std::vector<GenerationRequest> requests = make_requests();
  const auto free = rank.generate(requests, {.ignore_stop = true});
  // Tokens that are drawn early, late, and as the last token.
  const std::vector<int32_t> stops{free[0].tokens[0], free[3].tokens[4], free[6].tokens[9]};
  const auto stopped = rank.generate(requests, {.stops = stops});
  ASSERT_EQ(stopped.size(), free.size());
  int num_stopped = 0;
  for (size_t i = 0; i < free.size(); ++i) {
    const auto first = std::find_first_of(free[i].tokens.begin(), free[i].tokens.end(),
                                          stops.begin(), stops.end());
    const bool stops_here = first != free[i].tokens.end();
    const std::vector<int32_t> expected(free[i].tokens.begin(), stops_here ? first + 1 : first);
    EXPECT_EQ(stopped[i].tokens, expected);
    EXPECT_EQ(stopped[i].finish_reason, stops_here ? FinishReason::kStop : FinishReason::kLength);
    num_stopped += stops_here ? 1 : 0;
  }
  EXPECT_GE(num_stopped, 3);
  EXPECT_LT(num_stopped, static_cast<int>(free.size()));
  EXPECT_EQ(describe(rank.generate(requests, {.stops = stops, .ignore_stop = true})),
            describe(free));
}

TEST(Engine, OneTokenNeedsNoDecoding) {
  EngineRank rank;
  const std::vector<GenerationRequest> requests = make_requests();
  const auto longer = rank.generate(requests, {.max_new_tokens = 5});
  const auto single = rank.generate(requests, {.max_new_tokens = 1}, {.max_batch_size = 2});
  EXPECT_EQ(rank.counters.decode_steps, 0);
  ASSERT_EQ(single.size(), longer.size());
  for (size_t i = 0; i < single.size(); ++i) {
    EXPECT_EQ(single[i].tokens, std::vector<int32_t>{longer[i].tokens[0]});
    EXPECT_EQ(single[i].finish_reason, FinishReason::kLength);
  }
}

TEST(Engine, TheTotalLengthIsALimit) {
  EngineRank rank;
  const std::vector<GenerationRequest> requests = make_requests();  // longest prompt: 23
  const auto free = rank.generate(requests, {});
  const auto limited =
      rank.generate(requests, {}, {.page_size_tokens = 5, .max_sequence_tokens = 26});
  for (size_t i = 0; i < free.size(); ++i) {
    const size_t prompt = requests[static_cast<size_t>(free[i].tag)].prompt_tokens.size();
    const size_t length = std::min<size_t>(10, 26 - prompt);
    EXPECT_EQ(limited[i].tokens,
              std::vector<int32_t>(free[i].tokens.begin(),
                                   free[i].tokens.begin() + static_cast<std::ptrdiff_t>(length)));
    EXPECT_EQ(limited[i].finish_reason, FinishReason::kLength);
  }
  // A stop token drawn as the very last one is a stop.
  const auto last = rank.generate(requests, {.stops = {limited.back().tokens.back()}},
                                  {.max_sequence_tokens = 26});
  EXPECT_EQ(last.back().finish_reason, FinishReason::kStop);
}

TEST(Engine, RefusesPromptsThatCannotBeContinued) {
  EngineRank rank;
  std::vector<GenerationRequest> requests = make_requests();
  EXPECT_THROW(rank.generate(requests, {}, {.max_sequence_tokens = 23}), InternalError);
  EXPECT_NO_THROW(rank.generate(requests, {}, {.max_sequence_tokens = 24}));
  requests[2].prompt_tokens.clear();
  EXPECT_THROW(rank.generate(requests, {}), InternalError);
}

TEST(Engine, ReportsProgress) {
  EngineRank rank;
  const std::vector<GenerationRequest> requests = make_requests();
  Engine engine(rank.model.transformer, Schedule{.max_batch_size = 2}, rank.memory.allocator);
  int64_t last = 0;
  engine.generate(requests, Draws{}, rank.memory.ctx, [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, 15);
    last = done;
  });
  EXPECT_EQ(last, 15);
}

// Fills one weight matrix with NaN and tells the store.
void spoil(EngineRank& rank) {
  const Tensor shard = rank.model.store.shard(rank.model.parameters.layers[1].o_weight);
  poison_memory(shard.raw(), shard.size_bytes(), shard.device());
  rank.model.store.mark_weights_changed();
}

TEST(Engine, GoesOnAfterWeightsThatWereNotFinite) {
  const std::vector<GenerationRequest> requests = make_requests();
  for (const bool greedy : {false, true}) {
    EngineRank rank;
    const Draws draws{.greedy = greedy};
    const Schedule schedule{.max_batch_size = 4, .page_size_tokens = 3};
    const std::string expected = describe(rank.generate(requests, draws, schedule));
    Engine engine(rank.model.transformer, schedule, rank.memory.allocator);
    for (int round = 0; round < 20; ++round) {  // leaked pages would add up
      spoil(rank);
      EXPECT_THROW(engine.generate(requests, draws, rank.memory.ctx, ignore_progress),
                   NonFiniteError);
    }
    grpo::testing::fill_lively(rank.model.store, 7);
    EXPECT_EQ(describe(engine.generate(requests, draws, rank.memory.ctx, ignore_progress)),
              expected);
    EXPECT_EQ(engine.cache().num_free_pages(), EngineRank::num_pages(schedule));
  }
}

TEST(Engine, GoesOnAfterAnExceptionBetweenSteps) {
  const std::vector<GenerationRequest> requests = make_requests();
  EngineRank rank;
  const Schedule schedule{.max_batch_size = 4, .page_size_tokens = 3};
  const std::string expected = describe(rank.generate(requests, {}, schedule));
  Engine engine(rank.model.transformer, schedule, rank.memory.allocator);
  for (int stop_after = 1; stop_after < 30; ++stop_after) {
    int num_calls = 0;
    EXPECT_THROW(engine.generate(requests, Draws{}, rank.memory.ctx,
                                 [&](int64_t, int64_t) {
                                   if (++num_calls == stop_after) throw DataError("enough");
                                 }),
                 DataError);
  }
  EXPECT_EQ(describe(engine.generate(requests, Draws{}, rank.memory.ctx, ignore_progress)),
            expected);
  EXPECT_EQ(engine.cache().num_free_pages(), EngineRank::num_pages(schedule));
}

// R08, R12. Keys and logits of other weights than the present ones are never used, at whatever time
// they change.
TEST(Engine, WeightsThatChangeDuringGenerationAreNoticed) {
  const std::vector<GenerationRequest> requests = make_requests();
  for (const int64_t max_new_tokens : {1, 6}) {
    EngineRank rank;
    const Draws draws{.max_new_tokens = max_new_tokens};
    const Schedule schedule{.max_batch_size = 1};
    const std::string expected = describe(rank.generate(requests, draws, schedule));
    Engine engine(rank.model.transformer, schedule, rank.memory.allocator);
    for (const int change_at : {1, 2}) {  // one prompt's samples start one after the other
      int num_calls = 0;
      EXPECT_THROW(engine.generate(requests, draws, rank.memory.ctx,
                                   [&](int64_t, int64_t) {
                                     if (++num_calls == change_at) {
                                       rank.model.store.mark_weights_changed();
                                     }
                                   }),
                   InternalError)
          << max_new_tokens << " tokens, change at " << change_at;
    }
    EXPECT_EQ(describe(engine.generate(requests, draws, rank.memory.ctx, ignore_progress)),
              expected);
  }
}

// R06, R08. Nothing derived from the old weights survives: same as an engine that never saw them.
TEST(Engine, NewWeightsEqualAFreshEngine) {
  const std::vector<GenerationRequest> requests = make_requests();
  EngineRank fresh(even_config(), DType::kFloat32, 8);
  const std::string expected = describe(fresh.generate(requests, {}));
  EngineRank rank;
  Engine engine(rank.model.transformer, Schedule{}, rank.memory.allocator);
  const auto old = engine.generate(requests, Draws{}, rank.memory.ctx, ignore_progress);
  grpo::testing::fill_lively(rank.model.store, 8);
  const auto now = engine.generate(requests, Draws{}, rank.memory.ctx, ignore_progress);
  EXPECT_EQ(describe(now), expected);
  EXPECT_NE(describe(old), expected);
}

TEST(Engine, MemoryIsConstantOverCalls) {
  EngineRank rank;
  const std::vector<GenerationRequest> requests = make_requests();
  Engine engine(rank.model.transformer, Schedule{}, rank.memory.allocator);
  engine.generate(requests, Draws{}, rank.memory.ctx, ignore_progress);
  const size_t live = rank.memory.allocator.live_bytes();
  for (int i = 0; i < 5; ++i) engine.generate(requests, Draws{}, rank.memory.ctx, ignore_progress);
  EXPECT_EQ(rank.memory.allocator.live_bytes(), live);
}

}  // namespace
}  // namespace grpo::generation
