#include "model/packed_batch.h"

#include <algorithm>

namespace grpo::model {

PackedBatch::PackedBatch(std::span<const PackedSequence> sequences, Allocator& allocator)
    : max_length(0) {
  const auto num_sequences = static_cast<int64_t>(sequences.size());
  int64_t num_tokens = 0;
  int64_t num_predicted = 0;
  bool has_cuts = false;
  predicted_offsets.push_back(0);
  for (const PackedSequence& sequence : sequences) {
    const auto length = static_cast<int64_t>(sequence.tokens.size());
    CHECK(length >= 1 && sequence.first_target >= 1 && sequence.first_target <= length,
          "sequence of {} tokens, first target {}", length, sequence.first_target);
    const int64_t predicted = length - sequence.first_target;
    CHECK(sequence.cuts.empty() || static_cast<int64_t>(sequence.cuts.size()) == predicted);
    has_cuts = has_cuts || !sequence.cuts.empty();
    num_tokens += length;
    num_predicted += predicted;
    predicted_offsets.push_back(num_predicted);
    max_length = std::max(max_length, length);
  }
  const auto ints = [&](Shape shape) {
    return OwnedTensor(allocator, "packed_batch", DType::kInt32, shape);
  };
  tokens = ints({num_tokens});
  positions = ints({num_tokens, 2});
  query_offsets = ints({num_sequences + 1});
  context_lengths = ints({num_sequences});
  page_first_slot = ints({num_sequences, 1});
  predicted_rows = ints({num_predicted});
  targets = ints({num_predicted});
  if (has_cuts) cuts.resize(static_cast<size_t>(num_predicted));

  int32_t row = 0;
  int64_t predicted = 0;
  for (int64_t s = 0; s < num_sequences; ++s) {
    const PackedSequence& sequence = sequences[static_cast<size_t>(s)];
    const auto length = static_cast<int32_t>(sequence.tokens.size());
    query_offsets.view().data<int32_t>()[s] = row;
    page_first_slot.view().data<int32_t>()[s] = row;
    context_lengths.view().data<int32_t>()[s] = length;
    for (int32_t i = 0; i < length; ++i) {
      tokens.view().data<int32_t>()[row + i] = sequence.tokens[static_cast<size_t>(i)];
      positions.view().data<int32_t>()[2 * (row + i)] = i;
      positions.view().data<int32_t>()[2 * (row + i) + 1] = row + i;
      if (i < sequence.first_target) continue;
      predicted_rows.view().data<int32_t>()[predicted] = row + i - 1;
      targets.view().data<int32_t>()[predicted] = sequence.tokens[static_cast<size_t>(i)];
      if (!sequence.cuts.empty()) {
        cuts[static_cast<size_t>(predicted)] =
            sequence.cuts[static_cast<size_t>(i - sequence.first_target)];
      }
      ++predicted;
    }
    row += length;
  }
  query_offsets.view().data<int32_t>()[num_sequences] = row;
}

}  // namespace grpo::model
