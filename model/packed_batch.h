// PackedBatch: sequences laid end to end for one training or scoring pass.
// T tokens of all sequences, S sequences, R rows whose next token is predicted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/core/buffer.h"
#include "model/core/tensor.h"
#include "model/ops/log_softmax.h"

namespace grpo::model {

// One sequence; tokens [first_target, size) are predicted, each from the row before it.
struct PackedSequence {
  std::span<const int32_t> tokens;
  int64_t first_target;                 // at least 1; size() predicts nothing
  std::span<const ops::TokenCut> cuts;  // one a predicted token, or empty
};

class PackedBatch {
 public:
  // Owns copies of everything. Throws InternalError for an empty sequence or a bad first_target.
  PackedBatch(std::span<const PackedSequence> sequences, Allocator& allocator);

  int64_t num_tokens() const { return tokens.view().size(0); }
  int64_t num_predicted() const { return targets.view().size(0); }
  int64_t num_sequences() const { return context_lengths.view().size(0); }

  OwnedTensor tokens;           // [T] int32
  OwnedTensor positions;        // [T, 2] int32: position, slot (the packed row)
  OwnedTensor query_offsets;    // [S + 1] int32
  OwnedTensor context_lengths;  // [S] int32
  OwnedTensor page_first_slot;  // [S, 1] int32
  OwnedTensor predicted_rows;   // [R] int32: row whose hidden state predicts targets[r]
  OwnedTensor targets;          // [R] int32
  std::vector<ops::TokenCut> cuts;            // [R], or empty when nothing was cut
  std::vector<int64_t> predicted_offsets;     // [S + 1]: predicted rows of sequence s
  int64_t max_length;
};

}  // namespace grpo::model
