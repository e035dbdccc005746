// The work of a run counted by formula: floating-point operations of products and attention, and
// bytes that have to cross device memory, operator by operator; and the least time it takes.
// T tokens, R predicted rows, C rows of logits at once, D model, F feed-forward, V vocabulary.
#pragma once

#include <string>
#include <vector>

#include "model/files/model_config.h"

namespace grpo::benchmark {

// Every operand read or written once, as if nothing stayed in a cache from one operator to the
// next.
struct Work {
  double flops = 0;
  double bytes = 0;
};

struct Ceilings {
  double flops_per_second;
  double bytes_per_second;

  // The slower of the two; computing and moving overlap.
  double floor_seconds(const Work& work) const;
};

enum class Phase : uint8_t { kForward, kHead, kBackward, kOptimizer };
const char* phase_name(Phase phase);

// An operator at one shape.
struct OperatorWork {
  std::string name;
  Phase phase;
  double calls;
  Work work;  // of one call
};

// Sum over the operators' own floors: one follows the other.
double floor_seconds(const std::vector<OperatorWork>& operators, const Ceilings& ceilings);
std::vector<OperatorWork> only(const std::vector<OperatorWork>& operators, Phase phase);

// A micro-batch of equal sequences.
struct PassShape {
  int64_t num_tokens;  // T
  int64_t sequence_length;
  int64_t num_predicted;    // R
  int64_t head_chunk_rows;  // C, at most
};

// Rows of a cached pass: what prefill and decode put through the model.
struct CachedShape {
  double num_rows;
  double num_pairs;       // (query row, key) pairs of attention
  double context_tokens;  // keys and values read, each once where sequences share them
  double num_logit_rows;
};

// `activation_bytes` is the size of an element of activations and weights.
class ModelWork {
 public:
  ModelWork(const model::ModelConfig& config, double activation_bytes);

  double num_parameters() const;
  // Forward, loss head and backward of one micro-batch.
  std::vector<OperatorWork> training_pass(const PassShape& shape) const;
  std::vector<OperatorWork> scoring_pass(const PassShape& shape) const;
  // Gradients zeroed, their norm, and AdamW; once a step.
  std::vector<OperatorWork> optimizer_step() const;
  std::vector<OperatorWork> cached_pass(const CachedShape& shape) const;
  // A read of the logits.
  std::vector<OperatorWork> sampling(double num_rows) const;
  // Every weight read once and written once.
  Work refit() const;

 private:
  void append_layers_forward(std::vector<OperatorWork>& list, double rows, double pairs,
                             double context_tokens) const;
  void append_head_forward(std::vector<OperatorWork>& list, double rows, double chunk_rows) const;
  void append_layers_backward(std::vector<OperatorWork>& list, const PassShape& shape) const;
  Work product(double rows, double out, double in, double out_bytes) const;
  Work weight_gradient(double rows, double out, double in) const;
  // Elements of activations read and written.
  Work moved(double elements) const { return {.flops = 0, .bytes = elements * activation_bytes_}; }

  model::ModelConfig config_;
  double activation_bytes_;
};

}  // namespace grpo::benchmark
