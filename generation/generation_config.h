// GenerationConfig: how completions are drawn and how the engine batches them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/core/config_visitor.h"
#include "model/ops/log_softmax.h"

namespace grpo::generation {

struct GenerationConfig {
  std::optional<std::string> precision;  // null: the policy's, the only one that exact mode allows
  int64_t max_new_tokens = 128;
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  int64_t max_kept_ids = 256;
  std::vector<int64_t> stop_token_ids;
  bool ignore_eos = false;
  int64_t max_batch_size = 64;
  int64_t page_size_tokens = 16;
  int64_t prefill_chunk_tokens = 2048;
  bool enforce_eager = false;

  // The distribution that tokens are drawn from; of temperature 0, which draws none, that of 1.
  ops::SamplingFilter filter() const;

  void visit(ConfigVisitor& visitor);
  // Without the keys of training.
  void visit_sampling(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

// Throws ConfigKeyError unless a KV cache for `num_sequences` decoded together, each of at most
// `max_sequence_tokens`, keeps its slots' numbers inside 32 bits.
void check_cache_slots(const GenerationConfig& config, int64_t max_sequence_tokens,
                       int64_t num_sequences);

}  // namespace grpo::generation
