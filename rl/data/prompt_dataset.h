// Prompts from JSONL files: a template fills {field} from each line's object.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/core/config_visitor.h"
#include "model/tokenizer/tokenizer.h"

namespace grpo::rl {

struct DatasetConfig {
  std::string path;  // JSONL, one object a line
  std::string prompt_template = "{prompt}";
  std::string answer_template = "{answer}";  // expected answer; "" when the data has none
  std::string response_template;             // sft: the text to learn; "" when there is none
  bool shuffle = true;                       // a new order each epoch, keyed by the seed
  int64_t max_input_seq_length = 0;  // longest prompt in tokens; 0 leaves it to the model's limit

  void visit(ConfigVisitor& visitor);
  void validate(const ConfigVisitor& visitor) const;
};

struct PromptExample {
  int64_t index;  // 0-based among the data lines (blank lines are none)
  int64_t line;   // 1-based in the file
  std::string prompt;
  std::string answer;
  std::string response;
  std::vector<int32_t> prompt_tokens;
  std::vector<int32_t>
      response_tokens;  // of `response`, without an end token; empty without a response template
};

// In tokens, over all examples.
struct DatasetLengths {
  int64_t shortest_prompt;
  int64_t longest_prompt;
  int64_t longest_response;  // without an end token
  int64_t longest_example;   // prompt and response
};

// The order of an epoch's examples: a permutation of [0, size) that depends on size, seed and epoch
// alone (Fisher-Yates with counter-based random numbers).
std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, int64_t epoch);

// Loaded once. Throws DataError with file and line: not UTF-8, not JSON, not an object, a missing
// field, an empty prompt, a prompt over the limit, a file without lines. {{ and }} stand for
// braces. One thread.
class PromptDataset {
 public:
  PromptDataset(const DatasetConfig& config, const model::Tokenizer& tokenizer);

  DatasetLengths lengths() const;

  int64_t size() const { return static_cast<int64_t>(examples_.size()); }
  const PromptExample& example(int64_t index) const {
    return examples_[static_cast<size_t>(index)];
  }

  // The example at a running position: epoch position / size(), place by the epoch's permutation (a
  // function of seed and epoch alone).
  const PromptExample& at_position(int64_t position, uint64_t seed) const;

 private:
  // The last order asked for: positions come in sequence.
  struct CachedOrder {
    uint64_t seed = 0;
    int64_t epoch = -1;
    std::vector<int64_t> indices;
  };

  std::vector<PromptExample> examples_;
  bool shuffle_;
  mutable CachedOrder order_;
};

}  // namespace grpo::rl
