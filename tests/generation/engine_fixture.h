// A small model with an engine on one rank, and what engine tests ask of it.
#pragma once

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "generation/engine.h"
#include "tests/model_fixture.h"

namespace grpo::generation {

struct Draws {
  double temperature = 1.0;
  int32_t top_k = 0;
  double top_p = 1.0;
  int32_t max_kept_ids = 256;
  bool greedy = false;
  int64_t max_new_tokens = 10;
  std::vector<int32_t> stops = {};
  bool ignore_stop = false;
  uint64_t seed = 42;
  DrawSplit split = DrawSplit::kTrain;

  operator SamplingParams() const {
    return {.filter = {.temperature = static_cast<float>(temperature),
                       .top_k = top_k,
                       .top_p = top_p,
                       .max_kept_ids = max_kept_ids},
            .greedy = greedy,
            .max_new_tokens = max_new_tokens,
            .stop_token_ids = stops,
            .ignore_stop = ignore_stop,
            .seed = seed,
            .split = split,
            .stores_kept_tokens = true};
  }
};

struct Schedule {
  int64_t max_batch_size = 64;
  int64_t page_size_tokens = 16;
  int64_t prefill_chunk_tokens = 512;
  int64_t max_sequence_tokens = 64;
  bool enforce_eager = false;
  InjectedFault fault = InjectedFault::kNone;

  operator EngineOptions() const {
    return {.max_sequence_tokens = max_sequence_tokens,
            .max_batch_size = max_batch_size,
            .page_size_tokens = page_size_tokens,
            .prefill_chunk_tokens = prefill_chunk_tokens,
            .enforce_eager = enforce_eager,
            .fault = fault};
  }
};

// Prompts of several lengths, one token among them; the vocabulary has at least 100 ids.
inline std::vector<GenerationRequest> make_requests(int32_t num_samples = 3) {
  std::vector<GenerationRequest> requests;
  int64_t tag = 0;
  for (const int32_t length : {5, 1, 16, 3, 23}) {
    GenerationRequest request{.tag = tag,
                              .draw_index = 100 + static_cast<uint64_t>(tag),
                              .prompt_tokens = {},
                              .sample_indices = {}};
    for (int32_t i = 0; i < length; ++i) {
      request.prompt_tokens.push_back((17 * i + 31 * static_cast<int32_t>(tag) + 3) % 100);
    }
    for (int32_t i = 0; i < num_samples; ++i) request.sample_indices.push_back(i);
    requests.push_back(std::move(request));
    ++tag;
  }
  return requests;
}

inline std::string describe(const ops::KeptTokensView& kept, int64_t row) {
  std::string text;
  for (const uint32_t id : kept.row_ids(row)) text += fmt::format(":{}", id);
  const ops::KeptThreshold threshold = kept.threshold(row);
  return text +
         fmt::format(":{:016x}<={}", std::bit_cast<uint64_t>(threshold.above), threshold.last_tie);
}

// Everything of the completions, to the bit, so that two rollouts compare as texts.
inline std::string describe(const std::vector<Completion>& completions) {
  std::string text;
  for (const Completion& c : completions) {
    text +=
        fmt::format("{}/{} finish {}:", c.tag, c.sample_index, static_cast<int>(c.finish_reason));
    for (size_t i = 0; i < c.tokens.size(); ++i) {
      text += fmt::format(" {}:{:08x}", c.tokens[i], std::bit_cast<uint32_t>(c.logprobs[i]));
      const auto row = static_cast<int64_t>(i);
      if (row < c.kept.num_rows()) text += describe(c.kept.view(), row);
    }
    text += fmt::format(" ({} logprobs, {} sets)\n", c.logprobs.size(), c.kept.num_rows());
  }
  return text;
}

inline void ignore_progress(int64_t, int64_t) {}

// Weights are lively; scratch memory is poisoned.
class EngineRank {
 public:
  explicit EngineRank(const model::ModelConfig& config = grpo::testing::even_config(),
                      DType dtype = DType::kFloat32, uint64_t seed = 7)
      : model(poisoned(memory), config, grpo::testing::solo_groups(), dtype) {
    grpo::testing::fill_lively(model.store, seed);
  }

  std::vector<Completion> generate(const std::vector<GenerationRequest>& requests,
                                   const Draws& draws, const Schedule& schedule = {}) {
    Engine engine(model.transformer, schedule, memory.allocator);
    std::vector<Completion> completions =
        engine.generate(requests, draws, memory.ctx, ignore_progress);
    counters = engine.counters();
    CHECK(engine.cache().num_free_pages() == num_pages(schedule), "pages leaked");
    return completions;
  }

  static int64_t num_pages(const Schedule& s) {
    return (s.max_batch_size + 1) *
           ((s.max_sequence_tokens + s.page_size_tokens - 1) / s.page_size_tokens);
  }

  grpo::testing::RankContext memory;
  grpo::testing::TestModel model;
  EngineCounters counters;  // of the last generate()

 private:
  static grpo::testing::RankContext& poisoned(grpo::testing::RankContext& memory) {
    memory.allocator.set_poison_scratch(true);
    return memory;
  }
};

using grpo::testing::TestScores;

// Scores of a completion by the training side's forward over the whole sequence.
inline TestScores score(model::Transformer& transformer, grpo::testing::RankContext& memory,
                        const std::vector<int32_t>& prompt, const std::vector<int32_t>& response,
                        const ops::KeptTokensView& kept, float inv_temperature,
                        model::FilterCheck* filter_check = nullptr) {
  std::vector<int32_t> tokens = prompt;
  tokens.insert(tokens.end(), response.begin(), response.end());
  const model::PackedSequence sequence{
      .tokens = tokens, .first_target = static_cast<int64_t>(prompt.size()), .kept = kept};
  const model::PackedBatch batch({&sequence, 1}, memory.allocator);
  return grpo::testing::score(transformer, batch, inv_temperature, filter_check, memory.ctx);
}

inline std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

}  // namespace grpo::generation
