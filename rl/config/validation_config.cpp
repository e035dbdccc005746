#include "rl/config/validation_config.h"

#include "model/core/config_check.h"
#include "model/core/config_range.h"
#include "rl/data/prompt_template.h"

namespace grpo::rl {

void ValidationDatasetConfig::visit(ConfigVisitor& visitor) {
  visitor.field("name", name, "shown in validation/<name>/... when there are several");
  visitor.field("path", path, "JSONL file, one object a line");
  visitor.field("prompt_template", prompt_template, "the prompt; null takes data.train's");
  visitor.field("answer_template", answer_template, "the expected answer; null takes data.train's");
  visitor.field("response_template", response_template,
                "the text whose likelihood sft measures; null takes data.train's");
  visitor.field("max_input_seq_length", max_input_seq_length,
                "longest prompt in tokens; 0 leaves it to the model's limit");
}

void ValidationDatasetConfig::validate(const ConfigVisitor& visitor) const {
  const bool is_word = !name.empty() && name.find_first_not_of(
                                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                            "0123456789_-.") == std::string::npos;
  check_config(is_word, visitor, "name",
               fmt::format("\"{}\" is not a word of letters, digits, '_', '-' and '.'", name));
  check_config(!path.empty(), visitor, "path", "a dataset needs a JSONL file");
  require_range<int64_t>(visitor, "max_input_seq_length", max_input_seq_length, 0, kMaxTokens);
  const auto check_template = [&](std::string_view key, const std::optional<std::string>& text) {
    if (!text) return;
    try {
      PromptTemplate{*text};
    } catch (const ConfigError& error) {
      check_config(false, visitor, key, error.what());
    }
  };
  check_template("prompt_template", prompt_template);
  check_template("answer_template", answer_template);
  check_template("response_template", response_template);
}

DatasetConfig ValidationDatasetConfig::dataset(const DatasetConfig& train) const {
  return {.path = path,
          .prompt_template = prompt_template.value_or(train.prompt_template),
          .answer_template = answer_template.value_or(train.answer_template),
          .response_template = response_template.value_or(train.response_template),
          .shuffle = false,
          .max_input_seq_length = max_input_seq_length};
}

void ValidationPeriods::visit(ConfigVisitor& visitor) {
  visitor.field("val_period", val_period,
                "steps from one validation to the next; 0 for none in between");
  visitor.field("val_at_start", val_at_start, "validate before the first step");
  visitor.field("val_at_end", val_at_end, "validate after the last step");
}

void ValidationPeriods::validate(const ConfigVisitor& visitor) const {
  require_range<int64_t>(visitor, "val_period", val_period, 0, kMaxSteps);
}

bool ValidationPeriods::is_due(int64_t step, int64_t last_step) const {
  if (step == 0) return val_at_start;
  return (val_period > 0 && step % val_period == 0) || (val_at_end && step == last_step);
}

}  // namespace grpo::rl
