#include "rl/loop/sequence_scorer.h"

#include <cstring>

#include "model/core/host_transfer.h"
#include "parallel/comm/host_collectives.h"
#include "rl/data/work_division.h"

namespace grpo::rl {

model::PackedBatch pack_rollout(const std::vector<const RolloutSequence*>& sequences,
                                Allocator& allocator) {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<model::PackedSequence> packed;
  tokens.reserve(sequences.size() + 1);
  for (const RolloutSequence* sequence : sequences) {
    tokens.push_back(sequence->prompt_tokens);
    tokens.back().insert(tokens.back().end(), sequence->response_tokens.begin(),
                         sequence->response_tokens.end());
    packed.push_back({.tokens = tokens.back(),
                      .first_target = static_cast<int64_t>(sequence->prompt_tokens.size()),
                      .cuts = sequence->cuts});
  }
  if (packed.empty()) {
    tokens.push_back({0});
    packed.push_back({.tokens = tokens.back(), .first_target = 1, .cuts = {}});
  }
  return model::PackedBatch(packed, allocator);
}

namespace {

struct OwnScores {
  std::vector<int64_t> indices;
  std::vector<float> values;  // processed of a sequence, then unfiltered, in the order of indices
};

OwnScores score_own(model::Transformer& transformer, const std::vector<MicroBatch>& micro_batches,
                    std::span<const RolloutSequence> sequences, const ScorerOptions& options,
                    OpContext& ctx) {
  OwnScores own;
  for (const MicroBatch& micro_batch : micro_batches) {
    std::vector<const RolloutSequence*> members;
    for (const size_t index : micro_batch) members.push_back(&sequences[index]);
    const Workspace::Scope scope(ctx.workspace);
    const model::PackedBatch batch = pack_rollout(members, ctx.workspace.allocator());
    const int64_t rows = batch.num_predicted();
    const Tensor both = ctx.workspace.take(DType::kFloat32, {2 * rows});
    transformer.score({.processed = both.rows(0, rows), .unfiltered = both.rows(rows, rows)}, batch,
                      options.inv_temperature, options.cut_check, ctx);
    const auto values = to_host<float>(both, ctx.stream);
    for (size_t s = 0; s < micro_batch.size(); ++s) {
      own.indices.push_back(static_cast<int64_t>(micro_batch[s]));
      for (const int64_t first_row : {int64_t{0}, rows}) {
        const auto first = values.begin() + first_row;
        own.values.insert(own.values.end(), first + batch.predicted_offsets[s],
                          first + batch.predicted_offsets[s + 1]);
      }
    }
  }
  return own;
}

}  // namespace

SequenceLogprobs score_sequences(model::Transformer& transformer,
                                 const parallel::ProcessGroups& groups,
                                 std::span<const RolloutSequence> sequences,
                                 const ScorerOptions& options, OpContext& ctx) {
  std::vector<int64_t> lengths;
  lengths.reserve(sequences.size());
  for (const RolloutSequence& sequence : sequences) lengths.push_back(sequence.length());
  const auto dealt = deal_micro_batches(lengths, data_ranks(groups),
                                        {.max_tokens = options.max_tokens, .multiple = 1});
  const OwnScores own = score_own(transformer, dealt[static_cast<size_t>(groups.data.rank())],
                                  sequences, options, ctx);
  Communicator& data = groups.data.communicator();
  const auto all_indices = parallel::all_gather_bytes(data, std::as_bytes(std::span(own.indices)));
  const auto all_values = parallel::all_gather_bytes(data, std::as_bytes(std::span(own.values)));
  SequenceLogprobs result{.processed = std::vector<std::vector<float>>(sequences.size()),
                          .unfiltered = std::vector<std::vector<float>>(sequences.size())};
  for (size_t rank = 0; rank < all_indices.size(); ++rank) {
    std::vector<int64_t> indices(all_indices[rank].size() / sizeof(int64_t));
    if (!indices.empty())
      std::memcpy(indices.data(), all_indices[rank].data(), all_indices[rank].size());
    size_t offset = 0;
    for (const int64_t index : indices) {
      const auto i = static_cast<size_t>(index);
      for (auto* values : {&result.processed[i], &result.unfiltered[i]}) {
        values->resize(sequences[i].response_tokens.size());
        const size_t bytes = values->size() * sizeof(float);
        CHECK(offset + bytes <= all_values[rank].size(), "scores of rank {} end early", rank);
        if (bytes != 0) std::memcpy(values->data(), all_values[rank].data() + offset, bytes);
        offset += bytes;
      }
    }
  }
  return result;
}

}  // namespace grpo::rl
