#include "rl/data/prompt_dataset.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/core/config_check.h"
#include "model/core/config_range.h"
#include "model/core/counter_rng.h"
#include "model/files/input_file.h"
#include "model/files/json_text.h"
#include "model/tokenizer/unicode_text.h"
#include "rl/data/prompt_template.h"

namespace grpo::rl {

void DatasetConfig::visit(ConfigVisitor& visitor) {
  visitor.field("path", path, "JSONL file, one object a line");
  visitor.field("prompt_template", prompt_template,
                "the prompt; {field} is a field of the line, {{ and }} are braces");
  visitor.field("answer_template", answer_template, "the expected answer; \"\" when there is none");
  visitor.field("response_template", response_template,
                "the text that sft and warm-start steps learn; \"\" when there is none");
  visitor.field("shuffle", shuffle, "a new order each epoch, a function of the seed");
  visitor.field("max_input_seq_length", max_input_seq_length,
                "longest prompt in tokens; 0 leaves it to the model's limit");
}

void DatasetConfig::validate(const ConfigVisitor& visitor) const {
  check_config(!path.empty(), visitor, "path", "a dataset needs a JSONL file");
  check_config(!prompt_template.empty(), visitor, "prompt_template",
               "an empty prompt is not allowed");
  require_range<int64_t>(visitor, "max_input_seq_length", max_input_seq_length, 0,
                         kMaxSequenceTokens);
  const auto check_template = [&](std::string_view key, const std::string& text) {
    try {
      PromptTemplate{text};
    } catch (const ConfigError& error) {
      check_config(false, visitor, key, error.what());
    }
  };
  check_template("prompt_template", prompt_template);
  check_template("answer_template", answer_template);
  check_template("response_template", response_template);
}

std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, int64_t epoch) {
  static const uint64_t kStream = hash_name("prompt_order");
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (size_t i = order.size(); i > 1; --i) {
    const double uniform = uniform_at(seed, kStream, static_cast<uint64_t>(epoch), i);
    const size_t j = static_cast<size_t>(uniform * static_cast<double>(i));
    std::swap(order[i - 1], order[j]);
  }
  return order;
}

namespace {

class ExampleReader {
 public:
  ExampleReader(const DatasetConfig& config, const model::Tokenizer& tokenizer)
      : prompt_(config.prompt_template),
        answer_(config.answer_template),
        response_(config.response_template),
        max_prompt_tokens_(config.max_input_seq_length),
        tokenizer_(tokenizer) {}

  // Errors start with `where`.
  PromptExample read(const std::string& line, int64_t number, const std::string& where,
                     int64_t index) const {
    try {
      model::check_utf8(line);
      PromptExample example = read_object(model::parse_json(line, "the line"));
      example.index = index;
      example.line = number;
      return example;
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", where, error.what()));
    }
  }

 private:
  PromptExample read_object(const nlohmann::json& object) const {
    if (!object.is_object())
      throw DataError(fmt::format("the line is {}; a JSON object is needed", object.type_name()));
    PromptExample example{.index = 0,
                          .line = 0,
                          .prompt = prompt_.fill(object),
                          .answer = answer_.fill(object),
                          .response = response_.fill(object),
                          .prompt_tokens = {},
                          .response_tokens = {}};
    example.prompt_tokens = tokenizer_.encode(example.prompt);
    example.response_tokens = tokenizer_.encode(example.response);
    const auto num_tokens = static_cast<int64_t>(example.prompt_tokens.size());
    if (num_tokens == 0) throw DataError("the prompt is empty");
    if (max_prompt_tokens_ > 0 && num_tokens > max_prompt_tokens_)
      throw DataError(fmt::format("the prompt has {} tokens; allowed: {} (max_input_seq_length)",
                                  num_tokens, max_prompt_tokens_));
    return example;
  }

  PromptTemplate prompt_, answer_, response_;
  int64_t max_prompt_tokens_;
  const model::Tokenizer& tokenizer_;
};

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

}  // namespace

PromptDataset::PromptDataset(const DatasetConfig& config, const model::Tokenizer& tokenizer)
    : shuffle_(config.shuffle) {
  const ExampleReader reader(config, tokenizer);
  std::ifstream file = model::open_input(config.path);
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (is_blank(line)) continue;
    examples_.push_back(
        reader.read(line, number, fmt::format("{}:{}", config.path, number), size()));
  }
  if (file.bad()) throw DataError(fmt::format("{}: {}", config.path, std::strerror(errno)));
  if (examples_.empty()) throw DataError(fmt::format("{}: no line holds an example", config.path));
}

DatasetLengths PromptDataset::lengths() const {
  DatasetLengths lengths{.shortest_prompt = std::numeric_limits<int64_t>::max(),
                         .longest_prompt = 0,
                         .longest_response = 0,
                         .longest_example = 0};
  for (const PromptExample& example : examples_) {
    const auto prompt = static_cast<int64_t>(example.prompt_tokens.size());
    const auto response = static_cast<int64_t>(example.response_tokens.size());
    lengths.shortest_prompt = std::min(lengths.shortest_prompt, prompt);
    lengths.longest_prompt = std::max(lengths.longest_prompt, prompt);
    lengths.longest_response = std::max(lengths.longest_response, response);
    lengths.longest_example = std::max(lengths.longest_example, prompt + response);
  }
  return lengths;
}

const PromptExample& PromptDataset::at_position(int64_t position, uint64_t seed) const {
  CHECK(position >= 0, "position {}", position);
  const int64_t epoch = position / size();
  const int64_t place = position % size();
  if (!shuffle_) return example(place);
  if (order_.epoch != epoch || order_.seed != seed)
    order_ = {.seed = seed, .epoch = epoch, .indices = epoch_order(size(), seed, epoch)};
  return example(order_.indices[static_cast<size_t>(place)]);
}

}  // namespace grpo::rl
