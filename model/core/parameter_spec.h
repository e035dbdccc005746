// ParameterSpec: the single declaration of a parameter. Shards, padding, initialisation,
// checkpoints, refit, the gradient norm and optimizer ownership all follow from it by arithmetic on
// logical rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace grpo {

// Index into the list of specs of one model.
using ParameterId = int;

// A tensor as the model defines it: unsharded, unpadded, under its Hugging Face name.
struct LogicalTensor {
  std::string name;
  int64_t rows;    // dim 0
  int64_t cols;    // product of the other dims; 1 for a vector
  bool is_vector;  // rank 1 in files
};

// How tensor parallelism cuts each logical tensor.
enum class TpCut : uint8_t {
  kReplicated,
  kRows,        // every tensor's rows in tp equal parts; must divide
  kPaddedRows,  // as kRows, rows first rounded up to a multiple of tp (the vocabulary)
  kColumns      // dim 1 in tp equal parts; must divide
};

enum class GtpPlacement : uint8_t {
  kSharded,    // padded dim-0 shard of the TP-local rows
  kReplicated  // whole TP-local tensor on every gtp rank (norms, biases)
};

enum class InitKind : uint8_t { kNormal, kOnes, kZeros };

struct ParameterSpec {
  std::string name;  // of the stored, possibly fused parameter: "layers.0.qkv.weight"
  std::vector<LogicalTensor> parts;  // in storage order; all of equal cols
  TpCut tp_cut;
  GtpPlacement gtp;
  InitKind init;
  float init_std;  // for kNormal
  bool decays;     // AdamW's weight decay applies (matrices)

  int64_t rows() const;  // sum over parts
  int64_t cols() const { return parts.front().cols; }
  bool is_vector() const { return parts.front().is_vector; }
  int64_t num_elements() const { return rows() * cols(); }
};

// Number of logical elements of a model.
int64_t num_elements(const std::vector<ParameterSpec>& specs);

}  // namespace grpo
