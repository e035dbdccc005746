// What grpo_benchmark measures and at which sizes, from its command line.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "model/files/model_config.h"
#include "tools/benchmark/work.h"

namespace grpo::benchmark {

enum class Part : uint8_t { kTrain, kScore, kGenerate, kRefit };

struct Options {
  model::ModelConfig model;
  std::string model_name;
  std::string precision = "bfloat16";
  std::string device = "auto";
  std::set<Part> parts;
  bool kernels = false;
  int64_t product_candidates = 0;  // of each product's algorithms, best first
  bool fast = false;               // numerics.mode
  int64_t repeats = 3;
  Ceilings ceilings;
  std::string json_path;  // "": none

  // Training and scoring.
  int64_t micro_batch_tokens = 16384;
  int64_t sequence_length = 1024;
  int64_t context_tokens = 1;  // of a sequence, not predicted
  int64_t micro_batches = 4;   // a step
  int64_t head_chunk_rows = 4096;

  // Generation.
  int64_t num_sequences = 512;
  std::vector<int64_t> num_prompts;  // one measurement each
  int64_t prompt_tokens = 128;
  int64_t new_tokens = 128;
  int64_t page_size_tokens = 16;
  int64_t prefill_chunk_tokens = 8192;
  bool enforce_eager = false;
};

// Nothing when help was asked for and printed. Throws ConfigError, one line, for anything it does
// not know.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace grpo::benchmark
