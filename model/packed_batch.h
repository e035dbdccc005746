// PackedBatch: sequences laid end to end for one training or scoring pass.
// T tokens of all sequences, S sequences, R rows whose next token is predicted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/core/buffer.h"
#include "model/core/tensor.h"
#include "model/ops/kept_tokens.h"

namespace grpo::model {

// One sequence; tokens [first_target, size) are predicted, each from the row before it.
struct PackedSequence {
  std::span<const int32_t> tokens;
  int64_t first_target;      // at least 1; size() predicts nothing
  ops::KeptTokensView kept;  // of the predicted tokens, or absent
};

class PackedBatch {
 public:
  static constexpr int64_t kBytesPerSequence = 3 * sizeof(int32_t);  // of arrays by sequence

  // Owns copies of everything, on the allocator's device. Throws InternalError for an empty
  // sequence or a bad first_target.
  PackedBatch(std::span<const PackedSequence> sequences, Allocator& allocator);

  int64_t num_tokens() const { return tokens.size(0); }
  int64_t num_predicted() const { return targets.size(0); }
  int64_t num_sequences() const { return context_lengths.size(0); }

  Tensor tokens;                           // [T] int32
  Tensor positions;                        // [T, 2] int32: position, slot (the packed row)
  Tensor query_offsets;                    // [S + 1] int32
  Tensor context_lengths;                  // [S] int32
  Tensor page_first_slot;                  // [S, 1] int32
  Tensor predicted_rows;                   // [R] int32: row whose hidden state predicts targets[r]
  Tensor targets;                          // [R] int32
  ops::KeptTokens kept;                    // [R], or empty when no sequence has any
  std::vector<int64_t> predicted_offsets;  // [S + 1]: predicted rows of sequence s
  int64_t max_length;

 private:
  OwnedTensor integers_;  // what the tensors above view
};

}  // namespace grpo::model
