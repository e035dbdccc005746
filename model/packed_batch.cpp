#include "model/packed_batch.h"

#include <algorithm>

#include "model/core/host_transfer.h"

namespace grpo::model {

PackedBatch::PackedBatch(std::span<const PackedSequence> sequences, Allocator& allocator)
    : max_length(0) {
  const auto num_sequences = static_cast<int64_t>(sequences.size());
  int64_t num_tokens = 0;
  int64_t num_predicted = 0;
  bool has_kept = false;
  predicted_offsets.push_back(0);
  for (const PackedSequence& sequence : sequences) {
    const auto length = static_cast<int64_t>(sequence.tokens.size());
    CHECK(length >= 1 && sequence.first_target >= 1 && sequence.first_target <= length,
          "sequence of {} tokens, first target {}", length, sequence.first_target);
    const int64_t predicted = length - sequence.first_target;
    CHECK(sequence.kept.is_absent() || sequence.kept.num_rows == predicted);
    has_kept = has_kept || !sequence.kept.is_absent();
    num_tokens += length;
    num_predicted += predicted;
    predicted_offsets.push_back(num_predicted);
    max_length = std::max(max_length, length);
  }
  HostInt32Arrays arrays;
  const std::span<int32_t> token_ids = arrays.add({num_tokens});
  const std::span<int32_t> places = arrays.add({num_tokens, 2});
  const std::span<int32_t> offsets = arrays.add({num_sequences + 1});
  const std::span<int32_t> lengths = arrays.add({num_sequences});
  const std::span<int32_t> first_slots = arrays.add({num_sequences, 1});
  const std::span<int32_t> rows = arrays.add({num_predicted});
  const std::span<int32_t> target_ids = arrays.add({num_predicted});
  size_t row = 0;
  size_t predicted = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const PackedSequence& sequence = sequences[s];
    const size_t length = sequence.tokens.size();
    const auto first_target = static_cast<size_t>(sequence.first_target);
    first_slots[s] = offsets[s] = static_cast<int32_t>(row);
    lengths[s] = static_cast<int32_t>(length);
    for (size_t i = 0; i < length; ++i, ++row) {
      token_ids[row] = sequence.tokens[i];
      places[2 * row] = static_cast<int32_t>(i);
      places[2 * row + 1] = static_cast<int32_t>(row);
      if (i < first_target) continue;
      rows[predicted] = static_cast<int32_t>(row) - 1;
      target_ids[predicted] = sequence.tokens[i];
      ++predicted;
    }
    if (!sequence.kept.is_absent()) {
      kept.append(sequence.kept);
    } else if (has_kept) {
      kept.append_everything(static_cast<int64_t>(length - first_target));
    }
  }
  offsets[sequences.size()] = static_cast<int32_t>(row);

  integers_ = OwnedTensor(allocator, "packed_batch", DType::kInt32, {arrays.num_elements()});
  const std::vector<Tensor> tensors = arrays.upload(integers_);
  tokens = tensors[0];
  positions = tensors[1];
  query_offsets = tensors[2];
  context_lengths = tensors[3];
  page_first_slot = tensors[4];
  predicted_rows = tensors[5];
  targets = tensors[6];
}

}  // namespace grpo::model
